package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/sidecar"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file tests the project's main purpose: two copies of an unmodified operator share the work.

// shardRuleWithLock gives a shard ConfigMaps and Widgets with one of the values in their label `shard`, and a separate
// lock.
func shardRuleWithLock(shard string, values ...string) sidecar.ShardRule {
	rule := shardRule(shard, values...)
	rule.LeaderElectionName = lockName
	return rule
}

// startOperatorSidecar runs a sidecar for one shard whose pod is in the namespace.
func startOperatorSidecar(t *testing.T, namespace, shard string, values ...string) *sidecar.Sidecar {
	t.Helper()
	chain := shardChain(t, 1, shardRuleWithLock(shard, values...))
	return startSidecar(t, sidecar.Options{Chain: &chain, Namespace: namespace})
}

func TestTwoOperatorsShareTheWork(t *testing.T) {
	for _, kind := range []string{"ConfigMap", "Widget"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			lockNamespace := newNamespace(t)
			set := newObjectSet(t, shared.controlPlane, kind, 4, 5, "a", "b")
			flags := []string{"--app=" + set.app, "--kind=" + kind, "--lock=" + lockName, "--lock-namespace=" + lockNamespace}
			left := startOperator(t, "left-"+kind, sidecarKubeconfig(t, startOperatorSidecar(t, lockNamespace, "s0", "a")), flags...)
			right := startOperator(t, "right-"+kind, sidecarKubeconfig(t, startOperatorSidecar(t, lockNamespace, "s1", "b")), flags...)
			waitLeadingOperator(t, left)
			waitLeadingOperator(t, right)
			assertShardLocks(t, lockNamespace)
			for range 3 {
				set.requestStepOfEach(t)
				set.assertHandledByOwners(t, map[string]*operatorProcess{"a": left, "b": right})
			}
			for _, op := range []*operatorProcess{left, right} {
				op.assertNoFaults(t)
				for _, r := range op.records(t) {
					if shard := set.objects[r.Object]; r.Event == "handled" && (shard == "a") != (op == left) {
						t.Errorf("operator %s handled %s of shard %s", op.id, r.Object, shard)
					}
				}
			}
		})
	}
}

// assertShardLocks asserts two Leases with different holders, and none under the operators' own name.
func assertShardLocks(t *testing.T, namespace string) {
	t.Helper()
	leases := shared.client.CoordinationV1().Leases(namespace)
	holders := map[string]bool{}
	for _, name := range []string{"lock---s0", "lock---s1"} {
		lease := must(leases.Get(t.Context(), name, meta.GetOptions{}))(t)
		if lease.Spec.HolderIdentity == nil || holders[*lease.Spec.HolderIdentity] {
			t.Errorf("%s is held by %v", name, lease.Spec.HolderIdentity)
			continue
		}
		holders[*lease.Spec.HolderIdentity] = true
	}
	if _, err := leases.Get(t.Context(), lockName, meta.GetOptions{}); !kerrors.IsNotFound(err) {
		t.Errorf("there is also an unsharded lock: %v", err)
	}
}

func TestOneReplicaLeadsInShard(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	set := newObjectSet(t, shared.controlPlane, "ConfigMap", 2, 5, "a")
	flags := []string{"--app=" + set.app, "--lock=" + lockName, "--lock-namespace=" + namespace}
	firstSidecar, secondSidecar := startOperatorSidecar(t, namespace, "s0", "a"), startOperatorSidecar(t, namespace, "s0", "a")
	first := startOperator(t, "first", sidecarKubeconfig(t, firstSidecar), flags...)
	waitLeadingOperator(t, first)
	led := waitLeaderElection(t, firstSidecar, true)
	second := startOperator(t, "second", sidecarKubeconfig(t, secondSidecar), flags...)
	set.requestStepOfEach(t)
	set.assertHandledByOwners(t, map[string]*operatorProcess{"a": first})
	if standby := waitLeaderElection(t, secondSidecar, false); standby.Holder != led.Holder {
		t.Errorf("the standby's sidecar reports holder %q, the leader is %q", standby.Holder, led.Holder)
	}
	if now := waitLeaderElection(t, firstSidecar, true); now != led {
		t.Errorf("the operator leads with %+v, and led with %+v before", now, led)
	}
	if second.countRecords(t, "leading") != 0 {
		t.Error("two replicas of a shard lead")
	}
	first.assertNoFaults(t)
	// A killed operator can't release the lock: the other one takes over when the lease expires.
	first.process.Kill()
	waitLeaderElection(t, firstSidecar, false)
	waitLeadingOperator(t, second)
	if now := waitLeaderElection(t, secondSidecar, true); now.Holder == led.Holder || now.Since == "" {
		t.Errorf("the second one leads with %+v", now)
	}
	set.requestStepOfEach(t)
	set.assertHandledByOwners(t, map[string]*operatorProcess{"a": second})
	second.assertNoFaults(t)
}

// waitLeaderElection waits until a sidecar has seen the lock of shard s0, and reports whether its operator holds it.
func waitLeaderElection(t *testing.T, s *sidecar.Sidecar, want bool) sidecar.LeaderElection {
	t.Helper()
	var found sidecar.LeaderElection
	check(t, s.WaitStatus(t.Context(), fmt.Sprintf("the operator leads: %v", want), func(status sidecar.Status) bool {
		for _, election := range status.LeaderElections {
			if election.Lock == shardLock && election.Leads == want {
				found = election
				return true
			}
		}
		return false
	}))
	return found
}

// TestReshardUnderLoadLosesNoStep moves the objects of a shard back and forth between two busy operators, and replaces
// the plugin's code, without a restart, a failed request, or a step that is handled twice or missed.
func TestReshardUnderLoadLosesNoStep(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	set := newObjectSet(t, shared.controlPlane, "ConfigMap", 4, 8, "a", "b", "c")
	flags := []string{"--app=" + set.app, "--lock=" + lockName, "--lock-namespace=" + namespace}
	leftSidecar, rightSidecar := startOperatorSidecar(t, namespace, "s0", "a", "c"), startOperatorSidecar(t, namespace, "s1", "b")
	left, right := startOperator(t, "left", sidecarKubeconfig(t, leftSidecar), flags...), startOperator(t, "right", sidecarKubeconfig(t, rightSidecar), flags...)
	waitLeadingOperator(t, left)
	waitLeadingOperator(t, right)
	set.requestStepOfEach(t)
	set.assertHandledByOwners(t, map[string]*operatorProcess{"a": left, "b": right, "c": left})

	stopLoad := set.startLoad(t, true)
	stopLeft, stopRight := startRequests(t, leftSidecar), startRequests(t, rightSidecar)
	apply := func(s *sidecar.Sidecar, generation int64, code string, rule sidecar.ShardRule) {
		t.Helper()
		check(t, s.Apply(t.Context(), singlePluginChain(t, generation, readPlugin(t, code), rule)))
	}
	// The losing shard narrows first and finishes what it loses; only then the gaining shard widens.
	apply(leftSidecar, 2, "shard-selector", shardRuleWithLock("s0", "a"))
	left.waitForgotten(t, set.keysOf("c"))
	apply(rightSidecar, 2, "shard-selector", shardRuleWithLock("s1", "b", "c"))
	set.waitHandledBy(t, right, "c")
	// New code with the same rules: nothing is listed again, nothing waits.
	apply(leftSidecar, 3, "shard-selector-next", shardRuleWithLock("s0", "a"))
	apply(rightSidecar, 3, "shard-selector-next", shardRuleWithLock("s1", "b", "c"))
	set.waitHandledBy(t, left, "a")
	set.waitHandledBy(t, right, "b", "c")
	// Back again, with the new code.
	apply(rightSidecar, 4, "shard-selector-next", shardRuleWithLock("s1", "b"))
	right.waitForgotten(t, set.keysOf("c"))
	apply(leftSidecar, 4, "shard-selector-next", shardRuleWithLock("s0", "a", "c"))
	set.waitHandledBy(t, left, "c")
	t.Logf("%d steps requested, %d and %d other requests", stopLoad(), stopLeft(), stopRight())
	set.requestStepOfEach(t)
	set.assertHandledByOwners(t, map[string]*operatorProcess{"a": left, "b": right, "c": left})
	left.assertNoFaults(t)
	right.assertNoFaults(t)
}

// waitHandledBy waits until an operator has handled, from now on, a step of each object of some shards.
func (set *objectSet) waitHandledBy(t *testing.T, op *operatorProcess, shards ...string) {
	t.Helper()
	before := len(op.records(t))
	eventually(t, fmt.Sprintf("operator %s handles shards %v", op.id, shards), func() error {
		handled := map[string]bool{}
		for _, r := range op.records(t)[before:] {
			if r.Event == "handled" {
				handled[r.Object] = true
			}
		}
		for _, key := range set.keysOf(shards...) {
			if !handled[key] {
				return fmt.Errorf("%s is waiting", key)
			}
		}
		return nil
	})
}

// startRequests sends lists and gets through a sidecar, one after another on one connection, until the returned
// function is called, which returns their number. Each must succeed.
func startRequests(t *testing.T, s *sidecar.Sidecar) (stop func() int) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{}}
	quit, done := make(chan struct{}), make(chan int)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-quit:
				client.CloseIdleConnections()
				done <- n
				return
			default:
			}
			path := []string{"/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default", "/version"}[n%3]
			if err := getOK(client, "http://"+s.API+path); err != nil {
				t.Errorf("request %d: %v", n, err)
			}
		}
	}()
	return func() int {
		close(quit)
		return <-done
	}
}

func getOK(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.ReadAll(response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}
