package process

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// The main thread can't end, so it must never enter other namespaces: it would keep them alive. Locked here, it only
// runs the main goroutine.
func init() { runtime.LockOSThread() }

// Spawner is a thread that starts programs: in the namespaces of this process, in those of another process, or in new
// ones.
//
// Linux sends the parent-death signal when the *thread* that started the child ends, so all children of
// `defaultSpawner` start from one thread that lives as long as this process. Children in another PID namespace get no
// such signal, because os/exec kills a child at once that does not see its parent. The kernel ends them with the first
// process of their namespace.
type Spawner struct {
	jobs chan spawnJob
	// isForeign means that children do not see this process.
	isForeign bool
}

type spawnJob struct {
	do   func() error
	done chan error
}

var defaultSpawner = sync.OnceValue(func() *Spawner {
	place, err := NewSpawner(func() error { return nil })
	if err != nil {
		panic(err) // the empty function can't fail
	}
	return place
})

// SpawnInProcess returns a spawner in the namespaces of another process: programs see its files, processes and network.
// `pid` is its number in this process's namespace. Needs root.
func SpawnInProcess(pid int) (*Spawner, error) {
	place, err := NewSpawner(func() error { return enterNamespaces(pid) })
	if err != nil {
		return nil, err
	}
	place.isForeign = true
	return place, nil
}

// NewSpawner starts a thread and runs `prepare` on it. Children die with the thread.
func NewSpawner(prepare func() error) (*Spawner, error) {
	place := &Spawner{jobs: make(chan spawnJob)}
	prepared := make(chan error)
	go func() {
		// Never unlocked: a thread in other namespaces must run no other goroutine, and ends with this one.
		runtime.LockOSThread()
		err := prepare()
		prepared <- err
		if err != nil {
			return
		}
		for job := range place.jobs {
			job.done <- job.do()
		}
	}()
	if err := <-prepared; err != nil {
		return nil, err
	}
	return place, nil
}

// Close ends the thread; nothing can be started afterwards.
func (p *Spawner) Close() { close(p.jobs) }

// Do runs a function on the thread.
func (p *Spawner) Do(f func() error) error {
	job := spawnJob{f, make(chan error, 1)}
	p.jobs <- job
	return <-job.done
}

// namespaceKinds are in an order in which each can still be entered after the others: mounts last, because paths
// change.
var namespaceKinds = []struct {
	name string
	flag int
}{{"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS}, {"net", unix.CLONE_NEWNET}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}}

// enterNamespaces moves this thread. A PID namespace only takes effect for its children.
func enterNamespaces(pid int) error {
	// A thread that shares its root directory with others may not change it.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the root directory: %w", err)
	}
	var files []*os.File
	for _, namespace := range namespaceKinds {
		file, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, namespace.name))
		if err != nil {
			return err
		}
		defer file.Close()
		files = append(files, file)
	}
	for i, namespace := range namespaceKinds {
		if err := unix.Setns(int(files[i].Fd()), namespace.flag); err != nil {
			return fmt.Errorf("enter the %s namespace of process %d: %w", namespace.name, pid, err)
		}
	}
	return nil
}
