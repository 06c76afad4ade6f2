package realnode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	cgroupMount = "/sys/fs/cgroup"
	// cgroupPrefix is followed by the id of the process that created the group, and a number.
	cgroupPrefix = "ctrlmesh-e2e-"
	// cgroupPatience is how long the kernel may still count an ended process as a member.
	cgroupPatience = 10 * time.Second
)

var lastCgroup atomic.Int64

// nodeCgroup is the control group of a node's pods. Control groups do not end with a namespace, so this is the only
// thing that a node creates on the machine and has to remove there.
type nodeCgroup struct {
	// name of the group below the root of each hierarchy.
	name string
	// dirs are its directories: with version 2 one, with version 1 one for each hierarchy.
	dirs []string
}

func newCgroup() (*nodeCgroup, error) {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return nil, err
	}
	c := &nodeCgroup{name: fmt.Sprintf("%s%d-%d", cgroupPrefix, os.Getpid(), lastCgroup.Add(1))}
	for _, hierarchy := range hierarchies {
		removeAbandoned(hierarchy)
		dir := filepath.Join(hierarchy, c.name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, errors.Join(fmt.Errorf("make a control group: %w; a container that is not privileged can't run a node", err), c.remove())
		}
		c.dirs = append(c.dirs, dir)
	}
	return c, nil
}

// cgroupHierarchies returns the directories in which a control group must be created. With version 1 there may also be
// a version 2 hierarchy without controllers, in which runc creates groups as well.
func cgroupHierarchies() ([]string, error) {
	var at unix.Statfs_t
	if err := unix.Statfs(cgroupMount, &at); err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	if at.Type == unix.CGROUP2_SUPER_MAGIC {
		return []string{cgroupMount}, shareControllers()
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var dirs []string
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 2 && strings.HasPrefix(fields[2], "cgroup") {
			dirs = append(dirs, fields[1])
		}
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("no control group hierarchies are mounted below %s", cgroupMount)
	}
	return dirs, nil
}

// shareControllers enables the controllers that kubelet needs (getSupportedUnifiedControllers in pkg/kubelet/cm) for
// groups below the root. On a machine with systemd they are enabled already.
func shareControllers() error {
	has, err := os.ReadFile(filepath.Join(cgroupMount, "cgroup.controllers"))
	if err != nil {
		return err
	}
	control := filepath.Join(cgroupMount, "cgroup.subtree_control")
	shares, err := os.ReadFile(control)
	if err != nil {
		return err
	}
	for _, controller := range strings.Fields(string(has)) {
		desired := slices.Contains([]string{"cpu", "cpuset", "memory", "hugetlb", "pids"}, controller)
		if !desired || slices.Contains(strings.Fields(string(shares)), controller) {
			continue
		}
		if err := os.WriteFile(control, []byte("+"+controller), 0o644); err != nil {
			return fmt.Errorf("the control group %s does not share %s, and can't while processes are in it (in a container, move them to a group below): %w", cgroupMount, controller, err)
		}
	}
	return nil
}

// removeAbandoned removes groups of a killed test: its processes are gone, the empty groups are not.
func removeAbandoned(hierarchy string) {
	groups, _ := filepath.Glob(filepath.Join(hierarchy, cgroupPrefix+"*")) // the pattern is valid
	for _, group := range groups {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(group), cgroupPrefix), "-")
		pid, err := strconv.Atoi(owner)
		if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			_ = removeTree(group) // the next node tries again
		}
	}
}

// remove waits until the kernel has noticed that no process is left.
func (c *nodeCgroup) remove() error {
	deadline := time.Now().Add(cgroupPatience)
	for {
		var failures []error
		for _, dir := range c.dirs {
			failures = append(failures, removeTree(dir))
		}
		err := errors.Join(failures...)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pollInterval)
	}
}

// removeTree removes groups from the leaves up; their files can't be removed, and disappear with them.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}
