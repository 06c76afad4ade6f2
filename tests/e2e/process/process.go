// Package process runs the programs under test: output into a file, killed with the test, stopped in an orderly way.
//
// What is started, with which flags and when it counts as ready, is the caller's business.
package process

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// StopGrace is how long a program has between SIGTERM and SIGKILL: less than the 30 s of a pod.
const StopGrace = 25 * time.Second

// Process is a running (or ended) child.
type Process struct {
	// Name as in log files and messages.
	Name string
	// LogPath is the file with everything that the program wrote to stderr, and to stdout unless Spec.Stdout is set.
	LogPath string

	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Spec says what to start.
type Spec struct {
	Name string
	Path string
	Args []string
	// Env is added to a minimal environment: nothing of the caller's proxies, kubeconfigs and tokens gets in.
	Env []string
	// LogDir receives `<Name>.log`; an existing file is continued, so that a restart keeps the first run's log.
	LogDir string
	// Stdout, if set, receives standard output. The file is the caller's.
	Stdout *os.File
	// Spawner is where the program starts; nil is where this process is.
	Spawner *Spawner
	// User runs the program, and a group of the same number; zero is who runs the tests.
	User uint32
	// ControlGroup is the directory of the control group in which the program runs; empty is that of this process.
	ControlGroup string
	// NewNamespaces are CLONE_NEW… flags: what the program shall not share with this process.
	NewNamespaces uintptr
}

// Start runs the program. It dies with the test process, however that ends; one with other process ids, with the first process
// there.
func Start(spec Spec) (*Process, error) {
	logPath := filepath.Join(spec.LogDir, spec.Name+".log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	path, args := spec.Path, spec.Args
	if spec.ControlGroup != "" {
		// From its first page on: what a process has when it is moved stays where it was.
		path, args = "/bin/sh", append([]string{"-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, spec.ControlGroup, path}, args...)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + spec.LogDir, "TMPDIR=" + os.TempDir()}, spec.Env...)
	cmd.Stderr, cmd.Stdout = log, log
	if spec.Stdout != nil {
		cmd.Stdout = spec.Stdout
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: spec.NewNamespaces}
	if spec.User != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: spec.User, Gid: spec.User}
	}
	place := spec.Spawner
	if place == nil {
		place = defaultSpawner()
	}
	if !place.isForeign {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if err := place.Do(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p := &Process{Name: spec.Name, LogPath: logPath, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Done is closed once the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Alive tells whether the program still runs.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Pid is the process id, also after the end.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Err tells how the program ended; nil while it runs and after exit status 0.
func (p *Process) Err() error {
	if p.Alive() {
		return nil
	}
	return p.err
}

// ErrStopTimeout says that a program had to be killed.
var ErrStopTimeout = errors.New("it did not end in time after SIGTERM")

// Stop asks the program to end (SIGTERM) and waits. One that does not obey in time is killed, and that is ErrSlow.
func (p *Process) Stop(grace time.Duration) error {
	if !p.Alive() {
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(grace):
		p.Kill()
		return fmt.Errorf("%s: %w (%s)", p.Name, ErrStopTimeout, grace)
	}
}

// Kill ends the program at once (SIGKILL) and waits for it.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // an ended process is what we want
	<-p.done
}

// Pause stops the program where it is: it keeps its connections and answers nobody.
func (p *Process) Pause() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume lets a paused program go on.
func (p *Process) Resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// LogTail is the end of the log, for messages about a failure.
func (p *Process) LogTail(bytes int) string {
	text, err := os.ReadFile(p.LogPath)
	if err != nil {
		return err.Error()
	}
	if len(text) > bytes {
		text = text[len(text)-bytes:]
	}
	return string(text)
}

// FreeAddress is a loopback address, with a port, on which nobody listens at the moment.
func FreeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}
