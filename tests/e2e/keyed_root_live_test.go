package e2e

import (
	"maps"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/manager"
	"ctrlmesh.kusionstack.io/e2e/process"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file changes the number of shards of roots that divide objects by a hash, while operators work: of one root by
// scaling its StatefulSet, of the others by an edit. The objects have no labels, and managers write none. As in
// root_resize_live_test.go, no object ever has two owners.

// rootKeys are the keys of a root, but for labels.
var rootKeys = []string{"uid", "owner", "namespace"}

func TestKeyedRootKeepsOneOwnerWhenResized(t *testing.T) {
	t.Parallel()
	s := newManagerReplicas(t)
	for _, key := range rootKeys {
		// One after the other, because operators see the objects of all roots.
		t.Run(key, func(t *testing.T) { testResizedKeyedRoot(t, s, key) })
	}
}

func testResizedKeyedRoot(t *testing.T, s *managerReplicas, key string) {
	objects := newKeyedObjects(t, s.controlPlane, key, key, "")
	namespace := s.newNamespace(t)
	objects.learnDivisions(t, s.mesh, 3, 2)
	r := &liveRoot{liveOperators: &liveOperators{managerReplicas: s, objects: objects.objectSet}, more: keyField(key), shardNumber: objects.shardNumber}
	// Scaling must do what an edit of the root does.
	r.followsReplicas = key == "uid"
	r.startProgram = r.startVariedOperator
	t.Cleanup(func() { s.deletePodsAndShards(t, namespace) })
	r.start(t, namespace)
	r.assertShared(t)
	for _, size := range []int{3, 2} {
		before := maps.Clone(r.buckets)
		stopLoad := r.objects.startLoad(t, true)
		r.resizeRoot(t, size, false)
		stopLoad()
		r.assertShared(t)
		r.assertMovedOnlyOfShard(t, before, "operator-2")
		if got := readDivision(t, key, r.waitShards(t, namespace, "root", r.shardNames()...)); got != objects.divisions[size] {
			t.Errorf("%d shards are divided in another way than before", size)
		}
	}
	r.assertUnlabelled(t)
	t.Logf("%d writes recorded", r.ownership.assertOwners(t))
}

// startVariedOperator runs an operator written with controller-runtime, which streams its lists in protobuf; one written
// with kube-rs, which lists in JSON; or the first without streamed lists.
func (r *liveRoot) startVariedOperator(t *testing.T, pod, kubeconfig string) *operatorProcess {
	t.Helper()
	spec := process.Spec{Path: shared.operatorBinary, Args: []string{"--app=" + r.objects.app}, Env: []string{"KUBECONFIG=" + kubeconfig}}
	switch pod {
	case "operator-1":
		spec.Path = shared.kubeRS
		// In a list that kube-rs repeats after a hand-over it misses changes (docs/sharding.md).
		spec.Args = append(spec.Args, "--lock="+lockName, "--lock-namespace="+r.pods.namespace, "--reconcile-all-every=10")
	case "operator-2":
		spec.Env = append(spec.Env, "KUBE_FEATURE_WatchListClient=false")
	}
	return runOperator(t, pod, spec)
}

// assertShared asserts that each shard has objects, and that its operator handles them.
func (r *liveRoot) assertShared(t *testing.T) {
	t.Helper()
	busy := map[string]bool{}
	for _, owner := range r.buckets {
		busy[owner] = true
	}
	if len(busy) != r.size {
		t.Errorf("only %d of %d shards have objects", len(busy), r.size)
	}
	r.objects.requestStepOfEach(t)
	r.objects.assertHandledByOwners(t, r.owners())
}

// assertMovedOnlyOfShard asserts that some objects moved to or from one shard, and none between others.
func (r *liveRoot) assertMovedOnlyOfShard(t *testing.T, before map[string]string, shard string) {
	t.Helper()
	moved := 0
	for object, owner := range before {
		now := r.buckets[object]
		if now == owner {
			continue
		}
		moved++
		if now != shard && owner != shard {
			t.Errorf("%s moved from %s to %s", object, owner, now)
		}
	}
	if moved == 0 {
		t.Errorf("no object moved to or from %s", shard)
	}
}

// assertUnlabelled asserts that no object has a label, and that no manager wrote to one.
func (r *liveRoot) assertUnlabelled(t *testing.T) {
	t.Helper()
	for _, object := range must(r.client.CoreV1().ConfigMaps("").List(t.Context(), meta.ListOptions{}))(t).Items {
		if path := object.Namespace + "/" + object.Name; r.objects.contains(path) && len(object.Labels) > 0 {
			t.Errorf("%s has the labels %v", path, object.Labels)
		}
	}
	for _, event := range must(r.cluster.AuditEventsOf(manager.User))(t) {
		about := event.ObjectRef
		if about != nil && about.Resource == "configmaps" && isWrite(event.Verb) && r.objects.contains(about.Namespace+"/"+about.Name) {
			t.Errorf("a manager sent %s %s", event.Verb, event.RequestURI)
		}
	}
}
