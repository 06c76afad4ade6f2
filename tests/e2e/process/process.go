// Package process runs the programs under test: output goes to a file, they die with the test, and stop gracefully.
//
// The caller decides what is started, with which flags, and when it counts as ready.
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

// StopGrace is the time between SIGTERM and SIGKILL: less than the 30 s of a pod.
const StopGrace = 25 * time.Second

// Process is a child that runs or has ended.
type Process struct {
	// Name is used in log files and messages.
	Name string
	// LogPath is the file with everything that the program wrote to stderr, and to stdout unless Spec.Stdout is set.
	LogPath string

	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Spec describes a program to start.
type Spec struct {
	Name string
	Path string
	Args []string
	// Env is added to a minimal environment without the caller's proxies, kubeconfigs and tokens.
	Env []string
	// LogDir receives `<Name>.log`; an existing file is appended to, so that a restart keeps the earlier log.
	LogDir string
	// Stdout, if set, receives standard output. The caller closes the file.
	Stdout *os.File
	// Spawner starts the program; nil uses the namespaces of this process.
	Spawner *Spawner
	// User is the user and group id of the program; zero keeps the current user.
	User uint32
	// ControlGroup is the directory of the program's control group; empty means that of this process.
	ControlGroup string
	// NewNamespaces are CLONE_NEW… flags: namespaces that the program does not share with this process.
	NewNamespaces uintptr
}

// Start runs the program. It dies with the test process, however that ends; in another PID namespace it dies with that
// namespace's first process.
func Start(spec Spec) (*Process, error) {
	logPath := filepath.Join(spec.LogDir, spec.Name+".log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	path, args := spec.Path, spec.Args
	if spec.ControlGroup != "" {
		// The program starts in the group: memory that a process has when it is moved stays charged to the old group.
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

// Alive returns whether the program still runs.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Pid returns the process id, also after the end.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Err returns how the program ended; nil while it runs and after exit status 0.
func (p *Process) Err() error {
	if p.Alive() {
		return nil
	}
	return p.err
}

// ErrStopTimeout means that a program had to be killed.
var ErrStopTimeout = errors.New("the program did not end in time after SIGTERM")

// Stop sends SIGTERM and waits. A program that does not end in time is killed, which is ErrStopTimeout.
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

// Kill sends SIGKILL and waits.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // the process may have ended already
	<-p.done
}

// Pause stops the program with SIGSTOP: it keeps its connections and answers nobody.
func (p *Process) Pause() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume continues a paused program.
func (p *Process) Resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// LogTail returns the end of the log, for failure messages.
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

// FreeAddress returns a loopback address with a port on which nobody listens at the moment.
func FreeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}
