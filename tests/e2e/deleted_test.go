package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file deletes ShardingConfigs of operators that are at work. As in reshard_live_test.go, at no time are two of them owner of an
// object.

func TestDeletedShards(t *testing.T) {
	t.Parallel()
	t.Run("Shards", deletedShards)
	t.Run("DisabledRoot", disabledRoot)
}

// deleteShard deletes a ShardingConfig and does not wait.
func (l *live) deleteShard(t *testing.T, name string) {
	t.Helper()
	check(t, l.resource("ShardingConfig", l.pods.namespace).Delete(t.Context(), name, meta.DeleteOptions{}))
}

// released waits until a ShardingConfig that was deleted is gone.
func (m *mesh) released(t *testing.T, namespace, name string) {
	t.Helper()
	eventually(t, "ShardingConfig "+name+" is gone", func() error {
		found, _, err := m.progress(t.Context(), "ShardingConfig", namespace, name)
		switch {
		case kerrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("its conditions are %s", told(found.Conditions))
	})
}

// goes gives all buckets of a shard to another one.
func (l *live) goes(from, to string) {
	for bucket, owner := range l.buckets {
		if owner == from {
			l.log.moves(bucket, to)
			l.buckets[bucket] = to
		}
	}
}

// replacePods deletes the pods of operators that lead no more, and makes them again without an operator.
func (l *live) replacePods(t *testing.T, names map[string]map[string]string) {
	t.Helper()
	for name, labels := range names {
		l.operators[name].process.Kill()
		check(t, l.client.CoreV1().Pods(l.pods.namespace).Delete(t.Context(), name, meta.DeleteOptions{}))
		l.pods.absent(t, name)
		l.pods.create(t, name, labels)
		l.pods.ready(t, name)
	}
}

// unsharded waits until the chain has no rule any more, and demands that one operator owns everything.
func (l *live) unsharded(t *testing.T, owner string) {
	t.Helper()
	eventually(t, "the rules are gone", func() error {
		document, err := l.document(t.Context(), l.pods.namespace)
		if err != nil {
			return err
		}
		if strings.Contains(document, "shard-selector/") {
			return errors.New(document)
		}
		return nil
	})
	l.fleet.stepAll(t)
	owners := map[string]*operator{}
	for bucket := range l.buckets {
		owners[bucket] = l.operators[owner]
	}
	l.fleet.settled(t, owners)
	l.operators[owner].faultless(t)
	l.log.judge(t)
}

func deletedShards(t *testing.T) {
	t.Parallel()
	l := newLive(t)
	namespace := l.pods.namespace
	stopLoad := l.fleet.load(t, true)
	l.deleteShard(t, "s2")
	l.released(t, namespace, "s2")
	for _, sibling := range []string{"s0", "s1"} {
		if got := l.reaches(t, "ShardingConfig", namespace, sibling, "Overlapping", meta.ConditionTrue).condition("Overlapping"); got.Reason != "Orphaned" {
			t.Errorf("%s says %s: %s", sibling, got.Reason, got.Message)
		}
	}
	l.goes("s2", "s1")
	l.configure(t, "s1")
	l.reaches(t, "ShardingConfig", namespace, "s1", "Enforced", meta.ConditionTrue)

	l.goes("s1", "s0")
	l.deleteShard(t, "s1")
	l.deleteShard(t, "s0")
	l.released(t, namespace, "s1")
	l.says(t, namespace, "s0", "Distributed", "Gathering", "`kubectl -n "+namespace+" delete pods s1 s2`", "several owners")
	stopLoad()
	l.replacePods(t, map[string]map[string]string{"s1": {"shard": "s1"}, "s2": {"shard": "s2"}})
	l.released(t, namespace, "s0")
	l.unsharded(t, "s0")
}

func disabledRoot(t *testing.T) {
	t.Parallel()
	r := newRootLive(t)
	namespace := r.pods.namespace
	stopLoad := r.fleet.load(t, true)
	// Either may get everything: the shards are deleted one after the other.
	for bucket, owner := range r.buckets {
		r.log.moves(bucket, map[string]string{"operator-0": "operator-1", "operator-1": "operator-0"}[owner])
	}
	r.apply(t, namespace, rootConfig("root", rootPrefix, r.size, "disable: true"))
	successor, other := "operator-0", "operator-1"
	eventually(t, "one shard gets everything", func() error {
		for _, name := range r.names() {
			found, _, err := r.progress(t.Context(), "ShardingConfig", namespace, name)
			if got := found.condition("Distributed"); err == nil && got.Reason == "Gathering" {
				if strings.Contains(got.Message, "delete pods "+successor+"`") {
					successor, other = other, successor
				}
				return nil
			}
		}
		return errors.New("none says so")
	})
	eventually(t, "the other one is released", func() error {
		if left := r.shardsOf(t, namespace); len(left) != 1 {
			return fmt.Errorf("there are %v", left)
		}
		return nil
	})
	stopLoad()
	r.replacePods(t, map[string]map[string]string{other: nil})
	for _, name := range r.names() {
		r.released(t, namespace, name)
	}
	r.unsharded(t, successor)
}
