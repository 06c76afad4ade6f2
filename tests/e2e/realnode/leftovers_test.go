package realnode

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ctrlmesh.kusionstack.io/e2e/binaries"
)

// TestLeftoversOfNodeAreFound creates leftovers of a node, which must be found, and things of other programs, which
// must not.
func TestLeftoversOfNodeAreFound(t *testing.T) {
	binaries.NeedNode(t)
	unshareTestThread(t)
	before := recordLeftovers(t)
	dir := t.TempDir()
	id := identityOf(t, os.Getpid(), "ctrlmesh-e2e-none", filepath.Join(dir, "node"))
	id.spaces = nil // the namespaces are this test's own
	makeUnrelatedChanges(t, dir)
	if found := before.newLeftovers(recordLeftovers(t)); len(found) > 0 || len(must(id.mounts())(t)) > 0 {
		t.Errorf("things of other programs are taken for the node's: %q, %q", found, must(id.mounts())(t))
	}
	for what, leave := range map[string]func(*testing.T){
		"interfaces": func(t *testing.T) { addLink(t, "uplink") },
		"routes":     func(t *testing.T) { addRoute(t, "10.96.0.0/16") },
		"nftables":   func(t *testing.T) { addTable(t, "services") },
	} {
		before := recordLeftovers(t)
		leave(t)
		found := before.newLeftovers(recordLeftovers(t))
		if !slices.ContainsFunc(found, func(text string) bool { return strings.HasPrefix(text, what) }) {
			t.Errorf("%s is not found: %q", what, found)
		}
	}
	bindMountOnto(t, filepath.Join(dir, "node", "root", "run"))
	if len(must(id.mounts())(t)) != 1 {
		t.Error("a leftover mount is not found")
	}
	if _, err := keepLogsOnly(id.dir); err == nil {
		t.Error("a directory with a mount in it was removed")
	}
}

// makeUnrelatedChanges creates a mount, an interface, a route and a table.
func makeUnrelatedChanges(t *testing.T, dir string) {
	bindMountOnto(t, filepath.Join(dir, "other"))
	addLink(t, "veth0")
	addRoute(t, "192.0.2.0/24")
	addTable(t, "filter")
}

// unshareTestThread moves the test's thread into new mount and network namespaces, which end with it.
func unshareTestThread(t *testing.T) {
	runtime.LockOSThread()
	check(t, unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_NEWNET))
	check(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	loopback := must(netlink.LinkByName("lo"))(t)
	check(t, netlink.LinkSetUp(loopback))
}

func bindMountOnto(t *testing.T, dir string) {
	t.Helper()
	check(t, os.MkdirAll(dir, 0o755))
	check(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) }) // so that the directory can be removed
}

func addLink(t *testing.T, name string) {
	t.Helper()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = name
	check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: name + "-peer"}))
}

func addRoute(t *testing.T, network string) {
	t.Helper()
	route := &netlink.Route{LinkIndex: must(netlink.LinkByName("lo"))(t).Attrs().Index, Dst: must(netlink.ParseIPNet(network))(t)}
	check(t, netlink.RouteAdd(route))
}

func addTable(t *testing.T, name string) {
	t.Helper()
	connection := must(nftables.New())(t)
	connection.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: name})
	check(t, connection.Flush())
}

func TestOnlyLogsOfNodeAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "node")
	for _, file := range []string{
		"kubelet.log", "kubelet.key", "cluster/etcd.log", "cluster/etcd/member/wal", "root/var/log/pods/demo_web-0_1/main/0.log", "root/var/lib/containerd/blob",
		"root/var/lib/containerd/snapshots/1/fs/var/log/other.log",
	} {
		path := filepath.Join(dir, file)
		check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		check(t, os.WriteFile(path, []byte(file), 0o644))
	}
	logs := must(keepLogsOnly(dir))(t)
	var kept []string
	check(t, filepath.WalkDir(filepath.Dir(dir), func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			kept = append(kept, must(filepath.Rel(logs, path))(t))
		}
		return err
	}))
	if want := []string{"etcd.log", "kubelet.log", "pods/demo_web-0_1/main/0.log"}; !slices.Equal(kept, want) {
		t.Errorf("kept are %q, not %q", kept, want)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
