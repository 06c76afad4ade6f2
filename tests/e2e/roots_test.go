package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/manager"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// This file makes shards from roots, and checks the manager's results. root_resize_live_test.go does so with busy
// operators.

const (
	rootFinalizer = "finalizer.ctrlmesh.kusionstack.io/protected"
)

// rootConfig makes `size` shards with one pod each, `<prefix>-1-normal` and so on; `more` is appended to the spec.
func rootConfig(name, prefix string, size int, more string) string {
	return fmt.Sprintf(`
kind: ShardingConfig
metadata: {name: %s}
spec:
  controller: {leaderElectionName: %s}
  root:
    prefix: %s
    targetStatefulSet: operator
    auto: {shardingSize: %d, everyShardReplicas: 1}
    resourceSelector:
    - relateResources: [{apiGroups: ["", e2e.ctrlmesh.dev], resources: [configmaps, widgets]}]
    %s
`, name, lockName, prefix, size, more)
}

func TestRootMakesAndRepairsShards(t *testing.T) {
	t.Parallel()
	s := newManagerReplicas(t)
	t.Run("root_makes_shards", s.testRootMakesShards)
	t.Run("deleted_root_takes_its_shards_along", s.testRootDeletion)
	t.Run("taken_shard_name_is_reported", s.testShardNameTaken)
	t.Run("changed_shard_is_restored", s.testShardRepair)
	t.Run("overlap_is_reported", s.testOverlapIsReported)
	t.Run("manager_state_follows_pods_and_leader", s.testManagerState)
}

// shardObject has the fields of a generated ShardingConfig that the test reads.
type shardObject struct {
	Metadata meta.ObjectMeta
	Spec     struct {
		Selector   meta.LabelSelector
		Controller struct{ LeaderElectionName string }
		Limits     []struct {
			Selector   meta.LabelSelector
			HashRanges struct {
				Key    string
				Ranges []string
			}
		}
	}
	Status struct {
		Root struct{ ChildShardingConfigs []string }
	}
}

func (m *mesh) readShard(t *testing.T, namespace, name string) (shardObject, error) {
	t.Helper()
	object, err := m.resource("ShardingConfig", namespace).Get(t.Context(), name, meta.GetOptions{})
	if err != nil {
		return shardObject{}, err
	}
	return decodeShard(t, object), nil
}

func decodeShard(t *testing.T, object *unstructured.Unstructured) shardObject {
	t.Helper()
	var found shardObject
	check(t, json.Unmarshal(must(object.MarshalJSON())(t), &found))
	return found
}

// waitShards waits until a root has exactly these shards, and returns them.
func (m *mesh) waitShards(t *testing.T, namespace, root string, names ...string) []shardObject {
	t.Helper()
	m.waitCondition(t, "ShardingConfig", namespace, root, "Sharded", meta.ConditionTrue)
	rootObject := must(m.readShard(t, namespace, root))(t)
	if !slices.Equal(rootObject.Status.Root.ChildShardingConfigs, names) {
		t.Fatalf("the shards are %v, not %v", rootObject.Status.Root.ChildShardingConfigs, names)
	}
	shards := []shardObject{}
	for _, name := range names {
		shards = append(shards, must(m.readShard(t, namespace, name))(t))
	}
	return shards
}

// shardNamesIn returns the names of a namespace's ShardingConfigs that are not roots.
func (m *mesh) shardNamesIn(t *testing.T, namespace string) []string {
	t.Helper()
	names := []string{}
	for _, object := range must(m.resource("ShardingConfig", namespace).List(t.Context(), meta.ListOptions{}))(t).Items {
		if _, isRoot, _ := unstructured.NestedMap(object.Object, "spec", "root"); !isRoot {
			names = append(names, object.GetName())
		}
	}
	return names
}

// countConfigWrites counts the managers' writes to the ShardingConfigs of a namespace, without statuses.
func (m *mesh) countConfigWrites(t *testing.T, namespace string) int {
	t.Helper()
	count := 0
	for _, event := range must(m.cluster.AuditEventsIn(namespace))(t) {
		if about := event.ObjectRef; about != nil && about.Resource == resourceOfKind["ShardingConfig"] && about.Subresource == "" && isWrite(event.Verb) && event.User.Username == manager.User {
			count++
		}
	}
	return count
}

func isWrite(verb string) bool {
	return slices.Contains([]string{"create", "update", "patch", "delete"}, verb)
}

func (s *managerReplicas) testRootMakesShards(t *testing.T) {
	namespace := s.newNamespace(t)
	canary := "canary: {replicas: 2, inNamespaces: [team-a], inShardHash: ['3']}"
	s.apply(t, namespace, rootConfig("root", "demo", 2, canary))
	shards := s.waitShards(t, namespace, "root", "demo-0-canary", "demo-1-normal", "demo-2-normal")
	pods := [][]string{{"operator-0", "operator-1"}, {"operator-2"}, {"operator-3"}}
	for i, made := range shards {
		if got := made.Spec.Selector.MatchExpressions; len(got) != 1 || got[0].Key != podNameLabel || !slices.Equal(got[0].Values, pods[i]) {
			t.Errorf("%s has pods %v", made.Metadata.Name, got)
		}
		if made.Spec.Controller.LeaderElectionName != lockName {
			t.Errorf("%s has lock %q", made.Metadata.Name, made.Spec.Controller.LeaderElectionName)
		}
	}
	if got := shards[0].Spec.Limits[0].Selector.MatchExpressions; len(got) != 1 || got[0].Key != namespaceLabel || !slices.Contains(got[0].Values, "team-a") {
		t.Errorf("the canary sees %v", got)
	}
	want := []meta.LabelSelectorRequirement{
		{Key: namespaceLabel, Operator: meta.LabelSelectorOpNotIn, Values: []string{"team-a"}},
		{Key: hashLabel, Operator: meta.LabelSelectorOpNotIn, Values: []string{"3"}},
		{Key: hashLabel, Operator: meta.LabelSelectorOpIn, Values: shards[2].Spec.Limits[0].Selector.MatchExpressions[2].Values},
	}
	if got := shards[2].Spec.Limits[0].Selector.MatchExpressions; !reflect.DeepEqual(got, want) || len(got[2].Values) != 16 {
		t.Errorf("the last one sees %v", got)
	}
	s.waitCondition(t, "ShardingConfig", namespace, "demo-1-normal", "Distributed", meta.ConditionTrue)

	s.apply(t, namespace, rootConfig("root", "demo", 3, canary))
	after := s.waitShards(t, namespace, "root", "demo-0-canary", "demo-1-normal", "demo-2-normal", "demo-3-normal")
	for i, made := range shards {
		if after[i].Metadata.UID != made.Metadata.UID {
			t.Errorf("%s was re-created", made.Metadata.Name)
		}
	}
	// Once a root in another namespace is processed, all writes for this one have been made. Only a namespace that
	// happens to be in the canary's bucket is a change.
	more := 0
	for range 5 {
		before := s.countConfigWrites(t, namespace)
		patch := []byte(`{"metadata":{"annotations":{"a":"b"}}}`)
		_, err := s.resource("ShardingConfig", namespace).Patch(t.Context(), "root", types.MergePatchType, patch, meta.PatchOptions{})
		check(t, err)
		other := s.newNamespace(t)
		s.apply(t, other, rootConfig("root", "demo", 1, ""))
		s.waitShards(t, other, "root", "demo-1-normal")
		more = s.countConfigWrites(t, namespace) - before
		check(t, s.resource("ShardingConfig", other).Delete(t.Context(), "root", meta.DeleteOptions{}))
		s.waitRootGone(t, other, "root")
		if more == 0 {
			break
		}
	}
	if more != 0 {
		t.Errorf("%d writes although nothing had changed", more)
	}
	if left := s.shardNamesIn(t, namespace); len(left) != 4 {
		t.Errorf("shards of the other root %v are left", left)
	}
}

// waitRootGone waits until a root and all of its shards are gone.
func (m *mesh) waitRootGone(t *testing.T, namespace, root string) {
	t.Helper()
	eventually(t, root+" is gone with its shards", func() error {
		_, err := m.resource("ShardingConfig", namespace).Get(t.Context(), root, meta.GetOptions{})
		if err == nil {
			return errors.New("the root still exists")
		}
		if !kerrors.IsNotFound(err) {
			return err
		}
		return nil
	})
	if left := m.shardNamesIn(t, namespace); len(left) != 0 {
		t.Errorf("shards without a root are left: %v", left)
	}
}

func (s *managerReplicas) testRootDeletion(t *testing.T) {
	namespace := s.newNamespace(t)
	s.apply(t, namespace, rootConfig("root", "demo", 2, ""))
	s.waitShards(t, namespace, "root", "demo-1-normal", "demo-2-normal")
	if got := must(s.readShard(t, namespace, "root"))(t).Metadata.Finalizers; !slices.Equal(got, []string{rootFinalizer}) {
		t.Errorf("the finalizers are %v", got)
	}
	s.apply(t, namespace, rootConfig("root", "demo", 2, "disable: true"))
	eventually(t, "the shards are gone", func() error {
		root := must(s.readShard(t, namespace, "root"))(t)
		if left := s.shardNamesIn(t, namespace); len(left)+len(root.Status.Root.ChildShardingConfigs)+len(root.Metadata.Finalizers) != 0 {
			return fmt.Errorf("shards %v, status %v, finalizers %v are left", left, root.Status.Root.ChildShardingConfigs, root.Metadata.Finalizers)
		}
		return nil
	})
	told := s.waitCondition(t, "ShardingConfig", namespace, "root", "Sharded", meta.ConditionFalse)
	if reason := told.condition("Sharded").Reason; reason != "Disabled" {
		t.Errorf("the reason is %s", reason)
	}
	s.apply(t, namespace, rootConfig("root", "demo", 2, ""))
	s.waitShards(t, namespace, "root", "demo-1-normal", "demo-2-normal")
	// The leader may be another one by then.
	s.killLeader(t)
	check(t, s.resource("ShardingConfig", namespace).Delete(t.Context(), "root", meta.DeleteOptions{}))
	s.waitRootGone(t, namespace, "root")
}

func (s *managerReplicas) testShardNameTaken(t *testing.T) {
	namespace := s.newNamespace(t)
	s.apply(t, namespace, rootConfig("root", "demo", 2, ""))
	s.waitShards(t, namespace, "root", "demo-1-normal", "demo-2-normal")
	s.apply(t, namespace, shardConfig("demo-3-normal", "a"))
	before := must(s.readShard(t, namespace, "demo-3-normal"))(t)
	s.apply(t, namespace, rootConfig("root", "demo", 3, ""))
	told := s.waitCondition(t, "ShardingConfig", namespace, "root", "Sharded", meta.ConditionFalse).condition("Sharded")
	if told.Reason != "NameTaken" || !strings.Contains(told.Message, "demo-3-normal") {
		t.Errorf("the root has reason %s: %s", told.Reason, told.Message)
	}
	if after := must(s.readShard(t, namespace, "demo-3-normal"))(t); !reflect.DeepEqual(before.Spec, after.Spec) {
		t.Errorf("the foreign object is now %+v", after.Spec)
	}
	check(t, s.resource("ShardingConfig", namespace).Delete(t.Context(), "demo-3-normal", meta.DeleteOptions{}))
	s.waitShards(t, namespace, "root", "demo-1-normal", "demo-2-normal", "demo-3-normal")
}

func (s *managerReplicas) testShardRepair(t *testing.T) {
	namespace := s.newNamespace(t)
	s.apply(t, namespace, rootConfig("root", "demo", 2, ""))
	want := s.waitShards(t, namespace, "root", "demo-1-normal", "demo-2-normal")[0]
	shards := s.resource("ShardingConfig", namespace)
	for what, patch := range map[string]string{
		"what was changed": `{"spec":{"limits":[{"selector":{}}]}}`,
		"what was added":   `{"spec":{"webhook":{"certDir":"/certs","port":1}}}`,
		"its owner":        `{"metadata":{"ownerReferences":null}}`,
	} {
		changed := must(shards.Patch(t.Context(), "demo-1-normal", types.MergePatchType, []byte(patch), meta.PatchOptions{}))(t)
		eventually(t, what+" is restored", func() error {
			object, err := shards.Get(t.Context(), "demo-1-normal", meta.GetOptions{})
			if err != nil {
				return err
			}
			_, hasWebhook, _ := unstructured.NestedMap(object.Object, "spec", "webhook")
			now := decodeShard(t, object)
			if hasWebhook || object.GetResourceVersion() == changed.GetResourceVersion() || !reflect.DeepEqual(now.Spec, want.Spec) || len(now.Metadata.OwnerReferences) != 1 {
				return fmt.Errorf("the shard is %v", object.Object)
			}
			return nil
		})
	}
}

func (s *managerReplicas) testOverlapIsReported(t *testing.T) {
	namespace := s.newNamespace(t)
	reaches := func(name, reason, text string) {
		t.Helper()
		eventually(t, name+" has the condition "+reason, func() error {
			found, _, err := s.readStatus(t.Context(), "ShardingConfig", namespace, name)
			if err != nil {
				return err
			}
			got := found.condition("Overlapping")
			isTrue := got.Status == meta.ConditionTrue
			if got.Reason != reason || isTrue == (reason == "None") || !strings.Contains(got.Message, text) {
				return fmt.Errorf("the conditions are %s", describeConditions(found.Conditions))
			}
			return nil
		})
	}
	s.apply(t, namespace, shardConfig("left", "a"))
	s.apply(t, namespace, shardConfig("right", "a", "b"))
	reaches("left", "Shared", "can be in both left, right")
	reaches("right", "Shared", "can be in both left, right")
	s.apply(t, namespace, shardConfig("right", "b"))
	reaches("left", "Orphaned", "the limits of left, right leave out")
	rest := strings.Replace(shardConfig("rest", "a", "b"), "operator: In", "operator: NotIn", 1)
	s.apply(t, namespace, rest)
	for _, name := range []string{"left", "right", "rest"} {
		reaches(name, "None", "")
		// The shards controller, which also writes this status, continues.
		s.waitCondition(t, "ShardingConfig", namespace, name, "Accepted", meta.ConditionTrue)
	}
	// A new namespace may be in no shard.
	only := strings.Replace(shardConfig("only"), "{key: shard, operator: In, values: []}", "{key: "+namespaceLabel+", operator: NotIn, values: [late]}", 1)
	only = strings.Replace(only, "leaderElectionName: "+lockName, "leaderElectionName: another", 1)
	s.apply(t, namespace, only)
	reaches("only", "None", "")
	check(t, s.tryCreateNamespace(t.Context(), "late"))
	reaches("only", "Orphaned", "in namespace late; add the namespace or its hash bucket to one")
}
