package e2e

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file changes the number of a root's shards while operators are at work and managers die. As in reshard_live_test.go, at no
// time are two of them owner of an object, and in the end each object has one.

const (
	rootBuckets = 32
	rootPrefix  = "demo"
)

// rootLive is a root whose shards have operators. Buckets are values of the label `shard`, which is the key that its shards select
// by.
type rootLive struct {
	*live
	size int
}

func TestRootLive(t *testing.T) {
	t.Parallel()
	r := newRootLive(t)
	stopLoad := r.fleet.load(t, true)
	for i, size := range []int{3, 1, 3, 2, 3} {
		r.resize(t, size, i%2 == 1)
	}
	stopLoad()
	r.fleet.stepAll(t)
	owners := map[string]*operator{}
	for bucket, owner := range r.buckets {
		owners[bucket] = r.operators[owner]
	}
	r.fleet.settled(t, owners)
	t.Logf("%d writes", r.log.judge(t))
}

func newRootLive(t *testing.T) *rootLive {
	t.Helper()
	s := &survivors{mesh: newMesh(t, "--label-shard-hash=shard")}
	s.labels(t, "")
	s.managers = append(s.managers, s.start(t, unique("manager")), s.start(t, unique("manager")))
	leader(t, s.managers...)
	r := &rootLive{live: &live{survivors: s, operators: map[string]*operator{}, buckets: map[string]string{}}, size: 2}
	buckets := []string{"0", "11", "14", "20", "22", "31"}
	for _, bucket := range buckets {
		r.buckets[bucket] = r.owner(t, bucket)
	}
	namespace := r.namespace(t)
	r.pods = startPods(t, r.controlPlane, namespace, podOptions{publicKey: r.publicKey(t), syncPeriod: leaderDies})
	r.fleet = newFleet(t, r.controlPlane, "ConfigMap", 2, 2, buckets...)
	r.log = followOwnership(t, r.fleet, r.buckets, nil)
	r.apply(t, namespace, rootConfig("root", rootPrefix, r.size, ""))
	r.sharded(t, namespace, "root", r.names()...)
	for _, name := range r.names() {
		r.reaches(t, "ShardingConfig", namespace, name, "Distributed", meta.ConditionTrue)
	}
	r.startOperators(t)
	return r
}

// names of the shards.
func (r *rootLive) names() []string {
	names := []string{}
	for i := range r.size {
		names = append(names, fmt.Sprintf("%s-%d-normal", rootPrefix, i+1))
	}
	return names
}

// owner of a bucket: they are divided evenly and in order.
func (r *rootLive) owner(t *testing.T, bucket string) string {
	t.Helper()
	return fmt.Sprintf("operator-%d", evenShard(t, bucket, r.size))
}

// evenShard is the number of the shard that has a bucket, of so many.
func evenShard(t *testing.T, bucket string, size int) int {
	t.Helper()
	number := must(strconv.Atoi(bucket))(t)
	shard := 0
	for rootBuckets*(shard+1)/size <= number {
		shard++
	}
	return shard
}

// startOperators makes the pods of shards that have none yet.
func (r *rootLive) startOperators(t *testing.T) {
	t.Helper()
	for i := range r.size {
		name := fmt.Sprintf("operator-%d", i)
		if r.operators[name] == nil {
			// Before that the pod would be in no shard.
			r.settings(t, r.pods.namespace, fmt.Sprintf(`shard-selector/%s-%d-normal"`, rootPrefix, i+1))
			r.pods.create(t, name, nil)
			r.operators[name] = startOperator(t, name, kubeconfig(t, r.pods.ready(t, name)), "--app="+r.fleet.app)
		}
	}
}

// resize changes the number of shards, and the leading manager may die meanwhile.
func (r *rootLive) resize(t *testing.T, size int, withDeath bool) {
	t.Helper()
	first := must(r.shard(t, r.pods.namespace, rootPrefix+"-1-normal"))(t)
	died := make(chan struct{})
	close(died)
	if withDeath {
		victim := leader(t, r.managers...)
		died = make(chan struct{})
		time.AfterFunc(rand.N(longestPause), func() {
			victim.Process.Kill()
			close(died)
		})
	}
	r.size = size
	for bucket := range r.buckets {
		if owner := r.owner(t, bucket); owner != r.buckets[bucket] {
			r.log.moves(bucket, owner)
			r.buckets[bucket] = owner
		}
	}
	begin := time.Now()
	r.apply(t, r.pods.namespace, rootConfig("root", rootPrefix, size, ""))
	<-died
	r.replaceDead(t)
	shards := r.sharded(t, r.pods.namespace, "root", r.names()...)
	if shards[0].Metadata.UID != first.Metadata.UID {
		t.Errorf("%s was made again", shards[0].Metadata.Name)
	}
	r.startOperators(t)
	for _, name := range r.names() {
		r.reaches(t, "ShardingConfig", r.pods.namespace, name, "Enforced", meta.ConditionTrue)
	}
	t.Logf("%d shards, a manager died: %t; enforced after %s", size, withDeath, time.Since(begin).Round(time.Millisecond))
}
