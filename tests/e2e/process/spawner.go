package process

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// The main thread can't end, so it must never be the one that enters a place: it would keep the namespaces alive. Locked
// here, it serves the main goroutine alone.
func init() { runtime.LockOSThread() }

// Spawner is a thread from which programs start: in the namespaces of this process, in another's, or in some of their own.
//
// Linux sends the parent-death signal when the *thread* that started the child ends, so all children of `here` start from one
// thread that lives as long as this process. Children with process ids of another namespace get no such signal: os/exec kills a
// child at once that does not see its parent, and these see none. The kernel ends them with the first process of their namespace.
type Spawner struct {
	jobs chan spawnJob
	// isForeign says that children do not see this process.
	isForeign bool
}

type spawnJob struct {
	do   func() error
	done chan error
}

var defaultSpawner = sync.OnceValue(func() *Spawner {
	place, err := NewSpawner(func() error { return nil })
	if err != nil {
		panic(err) // there is nothing in it that fails
	}
	return place
})

// SpawnInProcess makes a place of the namespaces of a process: what starts there sees its files, processes and network. The process
// is named as this process sees it. Needs root.
func SpawnInProcess(pid int) (*Spawner, error) {
	place, err := NewSpawner(func() error { return enterNamespaces(pid) })
	if err != nil {
		return nil, err
	}
	place.isForeign = true
	return place, nil
}

// NewSpawner makes a place of a new thread, once that is prepared. Its children die with it.
func NewSpawner(prepare func() error) (*Spawner, error) {
	place := &Spawner{jobs: make(chan spawnJob)}
	prepared := make(chan error)
	go func() {
		// Never unlocked: a thread in foreign namespaces must serve nobody else, and ends with this goroutine.
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

// Close ends the thread. Nothing can be started there any more.
func (p *Spawner) Close() { close(p.jobs) }

// Do runs a function on the thread.
func (p *Spawner) Do(f func() error) error {
	job := spawnJob{f, make(chan error, 1)}
	p.jobs <- job
	return <-job.done
}

// namespaceKinds in an order in which each can still be entered after the others: the files last, as their names change.
var namespaceKinds = []struct {
	name string
	flag int
}{{"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS}, {"net", unix.CLONE_NEWNET}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}}

// enterNamespaces moves this thread. Of process ids only its children will see others than the rest of this process does.
func enterNamespaces(pid int) error {
	// A thread that shares its root directory with others may not change it.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("give the thread a root directory of its own: %w", err)
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
