package netns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/sidecar"
	"github.com/google/nftables"
)

// This file runs `ctrlmesh-proxy init` in a separate network, and checks where connections arrive.

// otherV4 is a second address of the Service.
const serviceV4, serviceV6, otherV4 = Service, "fd00:10:96::1", "10.96.0.2"

// redirectedPod is a network with servers that return their names.
type redirectedPod struct {
	*Network
	program string
}

func newRedirectedPod(t *testing.T) redirectedPod {
	t.Helper()
	p := redirectedPod{NewForTest(t, serviceV4+"/32", serviceV6+"/128", otherV4+"/32"), CopyProgram(t, must(sidecar.Binary())(t))}
	for address, name := range map[string]string{
		net.JoinHostPort(serviceV4, "443"): "server", net.JoinHostPort(serviceV6, "443"): "server",
		net.JoinHostPort(serviceV4, "80"): "server", net.JoinHostPort(otherV4, "443"): "server",
		"127.0.0.1:5443": "sidecar", "[::1]:5443": "sidecar",
	} {
		listener := must(p.Listen(address))(t)
		t.Cleanup(func() { listener.Close() })
		go func() {
			for {
				connection, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(connection, name)
				connection.Close()
			}
		}()
	}
	return p
}

// serverReached returns the name of the server that a user reaches at an address.
func (p redirectedPod) serverReached(t *testing.T, user int, host, port string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	connection := must(p.Dial(ctx, user, net.JoinHostPort(host, port)))(t)
	defer connection.Close()
	check(t, connection.SetDeadline(time.Now().Add(10*time.Second)))
	return string(must(io.ReadAll(connection))(t))
}

// ruleCounts returns all tables with their number of rules, ours and others: `ip ctrlmesh: 2 rules`.
func (p redirectedPod) ruleCounts(t *testing.T) []string {
	t.Helper()
	var found []string
	check(t, p.Do(func() error {
		connection, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := connection.ListTables()
		if err != nil {
			return err
		}
		for _, table := range tables {
			count := 0
			chains, err := connection.ListChainsOfTableFamily(table.Family)
			if err != nil {
				return err
			}
			for _, chain := range chains {
				if chain.Table.Name != table.Name {
					continue
				}
				rules, err := connection.GetRules(table, chain)
				if err != nil {
					return err
				}
				count += len(rules)
			}
			found = append(found, fmt.Sprintf("%d %s: %d rules", table.Family, table.Name, count))
		}
		return nil
	}))
	return found
}

func TestInitRedirectsAllButSidecar(t *testing.T) {
	t.Parallel()
	p := newRedirectedPod(t)
	for _, host := range []string{serviceV4, serviceV6} {
		if got := p.serverReached(t, ControllerUser, host, "443"); got != "server" {
			t.Fatalf("without rules %s is answered by the %s", host, got)
		}
	}
	both := serviceV4 + "," + serviceV6
	for _, times := range []string{"once", "twice"} {
		output, err := p.RunInit(p.program, NetAdminOnly(), ServiceEnv(both))
		if err != nil || !strings.Contains(output, serviceV4+":443,["+serviceV6+"]:443") || strings.Count(output, "\n") != 1 {
			t.Fatalf("%v: %s", err, output)
		}
		for _, want := range []struct {
			user             int
			host, port, said string
		}{
			{ControllerUser, serviceV4, "443", "sidecar"},
			{ControllerUser, serviceV6, "443", "sidecar"},
			{0, serviceV4, "443", "sidecar"},
			{SidecarUser, serviceV4, "443", "server"},
			{SidecarUser, serviceV6, "443", "server"},
			{ControllerUser, serviceV4, "80", "server"},
			{ControllerUser, otherV4, "443", "server"},
		} {
			if got := p.serverReached(t, want.user, want.host, want.port); got != want.said {
				t.Errorf("%s: user %d at %s:%s is answered by the %s", times, want.user, want.host, want.port, got)
			}
		}
		assertRules(t, p, "2 ctrlmesh: 2 rules", "10 ctrlmesh: 2 rules")
	}
	// The rules for an address that is no longer given are removed.
	_, err := p.RunInit(p.program, NetAdminOnly(), ServiceEnv(serviceV6))
	check(t, err)
	assertRules(t, p, "10 ctrlmesh: 2 rules")
	if got := p.serverReached(t, ControllerUser, serviceV4, "443"); got != "server" {
		t.Errorf("the %s answers at the old address", got)
	}
}

func TestInitCleanRemovesOnlyItsRules(t *testing.T) {
	t.Parallel()
	p := newRedirectedPod(t)
	check(t, p.Do(func() error {
		connection, err := nftables.New()
		if err != nil {
			return err
		}
		connection.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "theirs"})
		return connection.Flush()
	}))
	_, err := p.RunInit(p.program, NetAdminOnly(), ServiceEnv(serviceV4+","+serviceV6))
	check(t, err)
	for range 2 {
		_, err = p.RunInit(p.program, NetAdminOnly(), nil, "--clean")
		check(t, err)
		assertRules(t, p, "2 theirs: 0 rules")
	}
	if got := p.serverReached(t, ControllerUser, serviceV4, "443"); got != "server" {
		t.Errorf("without rules the %s answers", got)
	}
}

func assertRules(t *testing.T, p redirectedPod, want ...string) {
	t.Helper()
	if got := p.ruleCounts(t); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the rules are %q, not %q", got, want)
	}
}

func TestInitFailsWithReason(t *testing.T) {
	t.Parallel()
	p := newRedirectedPod(t)
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ControllerUser, Gid: ControllerUser}}
	for name, of := range map[string]struct {
		attributes  *syscall.SysProcAttr
		env         []string
		wantMessage string
	}{
		"no capability": {nobody, ServiceEnv(serviceV4), "capabilities.add: [NET_ADMIN]"},
		"no address":    {NetAdminOnly(), nil, "KUBERNETES_SERVICE_HOST is not set"},
		"a name":        {NetAdminOnly(), ServiceEnv("api.example.org"), "is not the IP address of a server"},
	} {
		output, err := p.RunInit(p.program, of.attributes, of.env)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 78 || !strings.Contains(output, of.wantMessage) {
			t.Errorf("%s: %v: %s", name, err, output)
		}
	}
	assertRules(t, p)
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		check(t, err)
		return value
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
