package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The node's programs need nothing of the machine but mount(8), which kubelet calls, and the C library under it and runc.
var machinePaths = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache"}

var nodeDirectories = []string{"dev", "etc", "opt", "proc", "root", "run", "sys", "tmp", "var"}

// kubeletSysctls are what kubelet writes at its start. They hold for the machine, not for a namespace, so it writes into
// files that only look like them. See setupKernelTunables in pkg/kubelet/cm.
var kubeletSysctls = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

func (n *nodeSetup) setUpFiles() error {
	// From here on no mount of ours reaches the machine, and none of its reaches us.
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
	// Volumes that containers and kubelet hand to each other need shared mounts, as on a machine with systemd.
	return mount("", "/", "", unix.MS_REC|unix.MS_SHARED)
}

func (n *nodeSetup) bindMachineFiles() error {
	for _, path := range append(machinePaths, n.readOnly...) {
		if err := n.bindMount(path, unix.MS_REC, unix.MS_RDONLY); err != nil {
			return err
		}
	}
	for _, path := range n.writable {
		// Without what is mounted below: this is where the node's own root directory lies.
		if err := n.bindMount(path, 0, 0); err != nil {
			return err
		}
	}
	return nil
}

// bindMount lets the node see a file or directory of the machine under the same name. One that is not there is left out.
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

// mountKernelFiles mounts devices, and what the kernel tells of these namespaces. Control groups are the machine's own.
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
		return fmt.Errorf("let go of the machine's files: %w", err)
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
