package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file deletes ShardingConfigs of busy operators. As in reshard_live_test.go, no object ever has two owners.

func TestDeletedShardsKeepOneOwner(t *testing.T) {
	t.Parallel()
	t.Run("shards_are_deleted_one_by_one", testDeletedShards)
	t.Run("root_is_disabled", testDisabledRoot)
}

// deleteShard deletes a ShardingConfig without waiting.
func (l *liveOperators) deleteShard(t *testing.T, name string) {
	t.Helper()
	check(t, l.resource("ShardingConfig", l.pods.namespace).Delete(t.Context(), name, meta.DeleteOptions{}))
}

// waitReleased waits until a deleted ShardingConfig is gone.
func (m *mesh) waitReleased(t *testing.T, namespace, name string) {
	t.Helper()
	eventuallyWithin(t, handOverTimeout, "ShardingConfig "+name+" is gone", func() error {
		found, _, err := m.readStatus(t.Context(), "ShardingConfig", namespace, name)
		switch {
		case kerrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("the conditions are %s", describeConditions(found.Conditions))
	})
}

// moveAllBuckets gives all buckets of a shard to another one.
func (l *liveOperators) moveAllBuckets(from, to string) {
	for bucket, owner := range l.buckets {
		if owner == from {
			l.ownership.recordMove(bucket, to)
			l.buckets[bucket] = to
		}
	}
}

// replacePods deletes the pods of operators that no longer lead, and re-creates them without an operator.
func (l *liveOperators) replacePods(t *testing.T, names map[string]map[string]string) {
	t.Helper()
	for name, labels := range names {
		l.operators[name].process.Kill()
		check(t, l.client.CoreV1().Pods(l.pods.namespace).Delete(t.Context(), name, meta.DeleteOptions{}))
		l.pods.waitGone(t, name)
		l.pods.create(t, name, labels)
		l.pods.waitReady(t, name)
	}
}

// assertUnsharded waits until the chain has no rule, and asserts that one operator owns all objects.
func (l *liveOperators) assertUnsharded(t *testing.T, owner string) {
	t.Helper()
	eventually(t, "the chain has no rules", func() error {
		document, err := l.chainDocument(t.Context(), l.pods.namespace)
		if err != nil {
			return err
		}
		if strings.Contains(document, "shard-selector/") {
			return errors.New(document)
		}
		return nil
	})
	l.objects.requestStepOfEach(t)
	owners := map[string]*operatorProcess{}
	for bucket := range l.buckets {
		owners[bucket] = l.operators[owner]
	}
	l.objects.assertHandledByOwners(t, owners)
	l.operators[owner].assertNoFaults(t)
	l.ownership.assertOwners(t)
}

// heldForReplacements is in the condition of a deleted shard whose pods show nothing, while its controller has other pods to replace.
const heldForReplacements = "so that new pods get a sidecar"

func testDeletedShards(t *testing.T) {
	t.Parallel()
	l := newLiveOperators(t)
	namespace := l.pods.namespace
	stopLoad := l.objects.startLoad(t, true)
	l.deleteShard(t, "s2")
	l.waitReleased(t, namespace, "s2")
	for _, sibling := range []string{"s0", "s1"} {
		if got := l.waitCondition(t, "ShardingConfig", namespace, sibling, "Overlapping", meta.ConditionTrue).condition("Overlapping"); got.Reason != "Orphaned" {
			t.Errorf("%s has reason %s: %s", sibling, got.Reason, got.Message)
		}
	}
	l.moveAllBuckets("s2", "s1")
	l.configure(t, "s1")
	l.waitCondition(t, "ShardingConfig", namespace, "s1", "Enforced", meta.ConditionTrue)

	l.moveAllBuckets("s1", "s0")
	l.deleteShard(t, "s1")
	l.deleteShard(t, "s0")
	l.waitConditionReason(t, namespace, "s1", "Distributed", "Deleting", heldForReplacements, "ShardingConfig s0")
	l.waitConditionReason(t, namespace, "s0", "Distributed", "Gathering", "`kubectl -n "+namespace+" delete pods s1 s2`", "several owners")
	stopLoad()
	l.replacePods(t, map[string]map[string]string{"s1": {"shard": "s1"}, "s2": {"shard": "s2"}})
	l.waitReleased(t, namespace, "s0")
	l.waitReleased(t, namespace, "s1")
	l.assertUnsharded(t, "s0")
}

func testDisabledRoot(t *testing.T) {
	t.Parallel()
	r := newLiveRoot(t)
	namespace := r.pods.namespace
	stopLoad := r.objects.startLoad(t, true)
	// Either shard may be the successor, because they are deleted one after the other.
	for bucket, owner := range r.buckets {
		r.ownership.recordMove(bucket, map[string]string{"operator-0": "operator-1", "operator-1": "operator-0"}[owner])
	}
	r.apply(t, namespace, rootConfig("root", rootPrefix, r.size, "disable: true"))
	successor, other := "operator-0", "operator-1"
	eventually(t, "one shard gets everything", func() error {
		for _, name := range r.shardNames() {
			found, _, err := r.readStatus(t.Context(), "ShardingConfig", namespace, name)
			if got := found.condition("Distributed"); err == nil && got.Reason == "Gathering" {
				if strings.Contains(got.Message, "delete pods "+successor+"`") {
					successor, other = other, successor
				}
				return nil
			}
		}
		return errors.New("no condition names a successor")
	})
	eventually(t, "the other one waits for its replacement", func() error {
		for _, name := range r.shardNames() {
			found, _, err := r.readStatus(t.Context(), "ShardingConfig", namespace, name)
			if got := found.condition("Distributed"); err == nil && strings.Contains(got.Message, heldForReplacements) {
				return nil
			}
		}
		return errors.New("no condition says so")
	})
	stopLoad()
	r.replacePods(t, map[string]map[string]string{other: nil})
	for _, name := range r.shardNames() {
		r.waitReleased(t, namespace, name)
	}
	r.assertUnsharded(t, successor)
}
