package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// This file changes the number of a root's shards while operators work and managers die. As in reshard_live_test.go, no
// object ever has two owners, and in the end each has one.

const (
	rootBucketCount = 32
	rootPrefix      = "demo"
	// statefulSetName is that of [rootConfig].
	statefulSetName = "operator"
)

// rootBuckets are values of the label `shard`, the hash buckets by which shards of a root without a key select.
var rootBuckets = []string{"0", "11", "14", "20", "22", "31"}

// liveRoot is a root whose shards have operators.
type liveRoot struct {
	*liveOperators
	size int
	// more is appended to the root.
	more string
	// followsReplicas says that the number of shards is that of the replicas of the StatefulSet.
	followsReplicas bool
	// shardNumber returns the number of the shard that owns a bucket, out of `size`, counted from 0.
	shardNumber func(t *testing.T, bucket string, size int) int
	// startProgram runs the operator of a pod.
	startProgram func(t *testing.T, pod, kubeconfig string) *operatorProcess
}

func TestResizedRootKeepsOneOwner(t *testing.T) {
	t.Parallel()
	r := newLiveRoot(t)
	stopLoad := r.objects.startLoad(t, true)
	for i, size := range []int{3, 1, 3, 2, 3} {
		r.resizeRoot(t, size, i%2 == 1)
	}
	stopLoad()
	r.objects.requestStepOfEach(t)
	r.objects.assertHandledByOwners(t, r.owners())
	t.Logf("%d writes recorded", r.ownership.assertOwners(t))
}

func newLiveRoot(t *testing.T) *liveRoot {
	t.Helper()
	s := &managerReplicas{mesh: newMesh(t, "--label-shard-hash=shard")}
	s.setLabelledKinds(t, "")
	s.managers = append(s.managers, s.startManager(t, uniqueName("manager")), s.startManager(t, uniqueName("manager")))
	waitLeader(t, s.managers...)
	objects := newObjectSet(t, s.controlPlane, "ConfigMap", 2, 2, rootBuckets...)
	r := &liveRoot{liveOperators: &liveOperators{managerReplicas: s, objects: objects}, shardNumber: evenShardNumber}
	r.startProgram = func(t *testing.T, pod, kubeconfig string) *operatorProcess {
		t.Helper()
		return startOperator(t, pod, kubeconfig, "--app="+objects.app)
	}
	r.start(t, r.newNamespace(t))
	return r
}

// start makes two shards, and runs their operators.
func (r *liveRoot) start(t *testing.T, namespace string) {
	t.Helper()
	r.size, r.operators, r.buckets = 2, map[string]*operatorProcess{}, map[string]string{}
	for _, bucket := range r.objects.objects {
		r.buckets[bucket] = r.shardOf(t, bucket)
	}
	r.pods = startPods(t, r.controlPlane, namespace, podOptions{publicKey: r.waitPublicKey(t), syncPeriod: syncPeriodWithFailover})
	r.ownership = watchOwnership(t, r.objects, r.buckets, nil)
	config := rootConfig("root", rootPrefix, r.size, r.more)
	if r.followsReplicas {
		r.createStatefulSet(t)
		config = strings.Replace(config, fmt.Sprintf("shardingSize: %d, ", r.size), "", 1)
	}
	r.apply(t, namespace, config)
	r.waitShards(t, namespace, "root", r.shardNames()...)
	for _, name := range r.shardNames() {
		r.waitCondition(t, "ShardingConfig", namespace, name, "Distributed", meta.ConditionTrue)
	}
	r.startMissingOperators(t)
}

func (r *liveRoot) shardNames() []string { return rootShardNames(r.size) }

// rootShardNames returns the names of the shards of a root.
func rootShardNames(size int) []string {
	names := []string{}
	for i := range size {
		names = append(names, rootShardName(i))
	}
	return names
}

// rootShardName returns the name of a shard by its number, counted from 0.
func rootShardName(number int) string { return fmt.Sprintf("%s-%d-normal", rootPrefix, number+1) }

// shardOf returns the owner of a bucket.
func (r *liveRoot) shardOf(t *testing.T, bucket string) string {
	t.Helper()
	return fmt.Sprintf("operator-%d", r.shardNumber(t, bucket, r.size))
}

// evenShardNumber returns the number of the shard that owns a bucket, out of `size`, in a root without a key: buckets
// are divided evenly and in order.
func evenShardNumber(t *testing.T, bucket string, size int) int {
	t.Helper()
	number := must(strconv.Atoi(bucket))(t)
	shard := 0
	for rootBucketCount*(shard+1)/size <= number {
		shard++
	}
	return shard
}

// startMissingOperators creates the pods of new shards.
func (r *liveRoot) startMissingOperators(t *testing.T) {
	t.Helper()
	for i := range r.size {
		name := fmt.Sprintf("operator-%d", i)
		if r.operators[name] == nil {
			// Before its shard exists, the pod would be in no shard.
			r.waitChainContains(t, r.pods.namespace, `shard-selector/`+rootShardName(i)+`"`)
			r.pods.create(t, name, nil)
			r.operators[name] = r.startProgram(t, name, sidecarKubeconfig(t, r.pods.waitReady(t, name)))
		}
	}
}

// createStatefulSet creates the StatefulSet of the root. Nobody creates its pods but the test.
func (r *liveRoot) createStatefulSet(t *testing.T) {
	t.Helper()
	replicas, labels := int32(r.size), map[string]string{"app": statefulSetName}
	set := &apps.StatefulSet{
		ObjectMeta: meta.ObjectMeta{Name: statefulSetName},
		Spec: apps.StatefulSetSpec{
			Replicas:    &replicas,
			ServiceName: statefulSetName,
			Selector:    &meta.LabelSelector{MatchLabels: labels},
			Template: core.PodTemplateSpec{
				ObjectMeta: meta.ObjectMeta{Labels: labels},
				Spec:       core.PodSpec{Containers: []core.Container{{Name: "operator", Image: "registry.example/operator:1"}}},
			},
		},
	}
	must(r.client.AppsV1().StatefulSets(r.pods.namespace).Create(t.Context(), set, meta.CreateOptions{}))(t)
}

// scaleStatefulSet is `kubectl scale`.
func (r *liveRoot) scaleStatefulSet(t *testing.T) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, r.size)
	sets := r.client.AppsV1().StatefulSets(r.pods.namespace)
	must(sets.Patch(t.Context(), statefulSetName, types.MergePatchType, patch, meta.PatchOptions{}, "scale"))(t)
}

// waitRootResized waits until the root has the desired shards. Scaling does not change the root, so its condition may be
// about the shards that it had before.
func (r *liveRoot) waitRootResized(t *testing.T) {
	t.Helper()
	eventually(t, "the root is resized", func() error {
		root, err := r.readShard(t, r.pods.namespace, "root")
		if err != nil {
			return err
		}
		if made := root.Status.Root.ChildShardingConfigs; !slices.Equal(made, r.shardNames()) {
			return fmt.Errorf("the shards are %v", made)
		}
		return nil
	})
}

// resizeRoot changes the number of shards; the leading manager may be killed meanwhile.
func (r *liveRoot) resizeRoot(t *testing.T, size int, withDeath bool) {
	t.Helper()
	first := must(r.readShard(t, r.pods.namespace, rootPrefix+"-1-normal"))(t)
	died := make(chan struct{})
	close(died)
	if withDeath {
		victim := waitLeader(t, r.managers...)
		died = make(chan struct{})
		time.AfterFunc(rand.N(longestPause), func() {
			victim.Process.Kill()
			close(died)
		})
	}
	r.size = size
	for bucket := range r.buckets {
		if owner := r.shardOf(t, bucket); owner != r.buckets[bucket] {
			r.ownership.recordMove(bucket, owner)
			r.buckets[bucket] = owner
		}
	}
	begin := time.Now()
	if r.followsReplicas {
		r.scaleStatefulSet(t)
	} else {
		r.apply(t, r.pods.namespace, rootConfig("root", rootPrefix, size, r.more))
	}
	<-died
	r.replaceDead(t)
	r.waitRootResized(t)
	shards := r.waitShards(t, r.pods.namespace, "root", r.shardNames()...)
	if shards[0].Metadata.UID != first.Metadata.UID {
		t.Errorf("%s was re-created", shards[0].Metadata.Name)
	}
	r.startMissingOperators(t)
	for _, name := range r.shardNames() {
		r.waitConditionWithin(t, handOverTimeout, "ShardingConfig", r.pods.namespace, name, "Enforced", meta.ConditionTrue)
	}
	t.Logf("%d shards, a manager died: %t; enforced after %s", size, withDeath, time.Since(begin).Round(time.Millisecond))
}
