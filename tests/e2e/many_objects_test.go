package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file tests a cluster with many objects.

const (
	manyNamespaces = 50
	// 500 objects in all.
	shardsPerNamespace = 10
)

// testManyObjects applies all objects of a namespace in a burst, which the manager may combine into one write, and then
// edits one in each namespace.
func testManyObjects(t *testing.T, m *mesh) {
	namespaces := make([]string, manyNamespaces)
	for i := range namespaces {
		namespaces[i] = m.newNamespace(t)
	}
	forEachNamespace(t, namespaces, func(ctx context.Context, namespace string) error {
		for i := range shardsPerNamespace {
			if _, err := m.tryApply(ctx, namespace, shardConfig(fmt.Sprintf("s%d", i), fmt.Sprintf("v%d", i))); err != nil {
				return err
			}
		}
		return nil
	})
	for _, namespace := range namespaces {
		for i := range shardsPerNamespace {
			m.waitCondition(t, "ShardingConfig", namespace, fmt.Sprintf("s%d", i), "Distributed", meta.ConditionTrue)
		}
	}
	writes, total := m.countChainWrites(t), 0
	for _, namespace := range namespaces {
		total += writes[namespace]
		if writes[namespace] > shardsPerNamespace {
			t.Errorf("%d objects led to %d writes of the chain", shardsPerNamespace, writes[namespace])
		}
	}
	t.Logf("%d objects in %d namespaces: %d writes of chains", manyNamespaces*shardsPerNamespace, manyNamespaces, total)

	forEachNamespace(t, namespaces, func(ctx context.Context, namespace string) error {
		_, err := m.tryApply(ctx, namespace, shardConfig("s0", "after"))
		return err
	})
	for _, namespace := range namespaces {
		m.waitChainContains(t, namespace, `"after"`)
		m.waitCondition(t, "ShardingConfig", namespace, "s0", "Distributed", meta.ConditionTrue)
	}
	for namespace, count := range m.countChainWrites(t) {
		if slices.Contains(namespaces, namespace) && count != writes[namespace]+1 {
			t.Errorf("one change led to %d writes of the chain", count-writes[namespace])
		}
	}
}

// forEachNamespace calls a function for all namespaces in parallel.
func forEachNamespace(t *testing.T, namespaces []string, do func(context.Context, string) error) {
	t.Helper()
	var group sync.WaitGroup
	for _, namespace := range namespaces {
		group.Go(func() {
			if err := do(t.Context(), namespace); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
}
