package e2e

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file changes the number of a root's shards while operators work and managers die. As in reshard_live_test.go, no
// object ever has two owners, and in the end each has one.

const (
	rootBucketCount = 32
	rootPrefix      = "demo"
)

// liveRoot is a root whose shards have operators. Buckets are values of the label `shard`, the key by which its shards
// select.
type liveRoot struct {
	*liveOperators
	size int
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
	owners := map[string]*operatorProcess{}
	for bucket, owner := range r.buckets {
		owners[bucket] = r.operators[owner]
	}
	r.objects.assertHandledByOwners(t, owners)
	t.Logf("%d writes recorded", r.ownership.assertOwners(t))
}

func newLiveRoot(t *testing.T) *liveRoot {
	t.Helper()
	s := &managerReplicas{mesh: newMesh(t, "--label-shard-hash=shard")}
	s.setLabelledKinds(t, "")
	s.managers = append(s.managers, s.startManager(t, uniqueName("manager")), s.startManager(t, uniqueName("manager")))
	waitLeader(t, s.managers...)
	r := &liveRoot{liveOperators: &liveOperators{managerReplicas: s, operators: map[string]*operatorProcess{}, buckets: map[string]string{}}, size: 2}
	buckets := []string{"0", "11", "14", "20", "22", "31"}
	for _, bucket := range buckets {
		r.buckets[bucket] = r.shardOf(t, bucket)
	}
	namespace := r.newNamespace(t)
	r.pods = startPods(t, r.controlPlane, namespace, podOptions{publicKey: r.waitPublicKey(t), syncPeriod: syncPeriodWithFailover})
	r.objects = newObjectSet(t, r.controlPlane, "ConfigMap", 2, 2, buckets...)
	r.ownership = watchOwnership(t, r.objects, r.buckets, nil)
	r.apply(t, namespace, rootConfig("root", rootPrefix, r.size, ""))
	r.waitShards(t, namespace, "root", r.shardNames()...)
	for _, name := range r.shardNames() {
		r.waitCondition(t, "ShardingConfig", namespace, name, "Distributed", meta.ConditionTrue)
	}
	r.startMissingOperators(t)
	return r
}

// shardNames returns the names of the shards.
func (r *liveRoot) shardNames() []string {
	names := []string{}
	for i := range r.size {
		names = append(names, fmt.Sprintf("%s-%d-normal", rootPrefix, i+1))
	}
	return names
}

// shardOf returns the owner of a bucket: buckets are divided evenly and in order.
func (r *liveRoot) shardOf(t *testing.T, bucket string) string {
	t.Helper()
	return fmt.Sprintf("operator-%d", evenShardNumber(t, bucket, r.size))
}

// evenShardNumber returns the number of the shard that owns a bucket, out of `size`.
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
			r.waitChainContains(t, r.pods.namespace, fmt.Sprintf(`shard-selector/%s-%d-normal"`, rootPrefix, i+1))
			r.pods.create(t, name, nil)
			r.operators[name] = startOperator(t, name, sidecarKubeconfig(t, r.pods.waitReady(t, name)), "--app="+r.objects.app)
		}
	}
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
	r.apply(t, r.pods.namespace, rootConfig("root", rootPrefix, size, ""))
	<-died
	r.replaceDead(t)
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
