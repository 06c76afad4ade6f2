package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// From the machine the node's programs need only mount(8), which kubelet calls, and the C library for it and runc.
var machinePaths = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache"}

var nodeDirectories = []string{"dev", "etc", "opt", "proc", "root", "run", "sys", "tmp", "var"}

// kubeletSysctls are written by kubelet at its start (setupKernelTunables in pkg/kubelet/cm). They hold for the
// machine, not for a namespace, so kubelet gets ordinary files in their place.
var kubeletSysctls = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

func (n *nodeSetup) setUpFiles() error {
	// From here on mounts of the node do not reach the machine, nor the machine's the node.
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE); err != nil {
		return err
	}
	if err := mount(n.root, n.root, "", unix.MS_BIND); err != nil {
		return err
	}
	for _, name := range nodeDirectories {
		if err := os.MkdirAll(filepath.Join(n.root, name), 0o755); err != nil {
			return err
		}
	}
	steps := []func() error{n.bindMachineFiles, n.mountKernelFiles, n.changeRoot, fakeKubeletSysctls}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	// Volumes that containers and kubelet share need shared mounts, as on a machine with systemd.
	return mount("", "/", "", unix.MS_REC|unix.MS_SHARED)
}

func (n *nodeSetup) bindMachineFiles() error {
	for _, path := range append(machinePaths, n.readOnly...) {
		if err := n.bindMount(path, unix.MS_REC, unix.MS_RDONLY); err != nil {
			return err
		}
	}
	for _, path := range n.writable {
		// Without submounts: the node's own root directory is below this one.
		if err := n.bindMount(path, 0, 0); err != nil {
			return err
		}
	}
	return nil
}

// bindMount makes a file or directory of the machine visible under the same name. A missing one is skipped.
func (n *nodeSetup) bindMount(path string, depth, flags uintptr) error {
	target := filepath.Join(n.root, path)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		link, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return os.Symlink(link, target)
	case info.IsDir():
		err = os.MkdirAll(target, 0o755)
	default:
		err = errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.WriteFile(target, nil, 0o644))
	}
	if err != nil {
		return err
	}
	if err := mount(path, target, "", unix.MS_BIND|depth); err != nil || flags == 0 {
		return err
	}
	return mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|flags)
}

// mountKernelFiles mounts devices, proc and sys of these namespaces. Control groups are the machine's.
func (n *nodeSetup) mountKernelFiles() error {
	inside := func(path string) string { return filepath.Join(n.root, path) }
	const plain = unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV
	return errors.Join(
		mount("/dev", inside("dev"), "", unix.MS_BIND|unix.MS_REC),
		mount("proc", inside("proc"), "proc", plain),
		mount("sysfs", inside("sys"), "sysfs", plain),
		mount("/sys/fs/cgroup", inside("sys/fs/cgroup"), "", unix.MS_BIND|unix.MS_REC),
	)
}

func (n *nodeSetup) changeRoot() error {
	const old = ".machine"
	if err := os.MkdirAll(filepath.Join(n.root, old), 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(n.root, filepath.Join(n.root, old)); err != nil {
		return fmt.Errorf("make %s the root directory: %w", n.root, err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/"+old, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the machine's files: %w", err)
	}
	return os.Remove("/" + old)
}

func fakeKubeletSysctls() error {
	for _, name := range kubeletSysctls {
		value, err := os.ReadFile("/proc/sys/" + name)
		if err != nil {
			return err
		}
		fake := "/run/settings/" + name
		if err := errors.Join(os.MkdirAll(filepath.Dir(fake), 0o755), os.WriteFile(fake, value, 0o644)); err != nil {
			return err
		}
		if err := mount(fake, "/proc/sys/"+name, "", unix.MS_BIND); err != nil {
			return err
		}
	}
	return nil
}

func mount(source, target, kind string, flags uintptr) error {
	if err := unix.Mount(source, target, kind, flags, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source+kind, target, err)
	}
	return nil
}
