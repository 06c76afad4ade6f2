package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file implements the sources of shards of chaos_test.go.

// manualShards creates one ShardingConfig for each shard. When one is deleted its pods stay, and see nothing.
type manualShards struct {
	*chaos
	present map[string]bool
}

// manualBucketCount is the number of buckets of all shards, two each at first.
const manualBucketCount = 2 * maxChaosShards

func (m *manualShards) createShards(t *testing.T) map[string]map[string]string {
	t.Helper()
	m.present = map[string]bool{}
	m.shardOf = func(pod string) string { return pod[:strings.LastIndex(pod, "-")] }
	for i := range manualBucketCount {
		m.buckets[fmt.Sprint(i)] = fmt.Sprintf("s%d", i%maxChaosShards)
	}
	pods := map[string]map[string]string{}
	for i := range maxChaosShards {
		shard := fmt.Sprintf("s%d", i)
		m.configure(t, shard)
		m.present[shard] = true
		for n := range chaosReplicas {
			pods[fmt.Sprintf("%s-%d", shard, n)] = map[string]string{"shard": shard}
		}
	}
	for _, shard := range m.shardNames() {
		m.waitCondition(t, "ShardingConfig", m.pods.namespace, shard, "Distributed", meta.ConditionTrue)
	}
	return pods
}

func (m *manualShards) shardNames() []string { return slices.Sorted(maps.Keys(m.present)) }

// configure writes the ShardingConfig of a shard for its current buckets. It adds one value that no object has, so that
// a shard may be empty. The values count as buckets, because the manager reads the label `shard` as that of the hash.
func (m *manualShards) configure(t *testing.T, shard string) {
	t.Helper()
	var number int
	must(fmt.Sscanf(shard, "s%d", &number))(t)
	values := []string{}
	for _, bucket := range append(m.bucketsOf(shard), fmt.Sprint(manualBucketCount+number)) {
		values = append(values, strconv.Quote(bucket))
	}
	m.apply(t, m.pods.namespace, shardConfig(shard, values...))
}

func (m *manualShards) editShards(t *testing.T) string {
	t.Helper()
	ways := []func(*testing.T) string{m.doNothing}
	if len(m.present) > 1 {
		ways = append(ways, m.moveBucket, m.moveBucket, m.moveBucket, m.deleteShard, m.deleteShard)
	}
	if len(m.present) < maxChaosShards {
		ways = append(ways, m.addShard, m.addShard)
	}
	if len(m.bucketsOf("")) > 0 {
		ways = append(ways, m.adoptBuckets)
	}
	return ways[m.random.IntN(len(ways))](t)
}

func (m *manualShards) doNothing(*testing.T) string {
	m.pause()
	return "no edit"
}

// moveBucket edits two objects in random order. If the gaining shard is edited first, both claim the bucket for a
// moment.
func (m *manualShards) moveBucket(t *testing.T) string {
	t.Helper()
	losing := m.randomName(m.shardNames())
	own := m.bucketsOf(losing)
	if len(own) == 0 {
		return m.doNothing(t)
	}
	bucket := m.randomName(own)
	gaining := m.randomName(slices.DeleteFunc(m.shardNames(), func(shard string) bool { return shard == losing }))
	m.recordMove(bucket, gaining)
	order := []string{losing, gaining}
	if m.random.IntN(2) == 0 {
		slices.Reverse(order)
	}
	m.configure(t, order[0])
	m.pause()
	m.configure(t, order[1])
	return fmt.Sprintf("%s goes from %s to %s, %s is edited first", bucket, losing, gaining, order[0])
}

// deleteShard deletes one of several shards. Nobody owns its objects afterwards.
func (m *manualShards) deleteShard(t *testing.T) string {
	t.Helper()
	shard := m.randomName(m.shardNames())
	m.deleteConfig(t, shard)
	for _, bucket := range m.bucketsOf(shard) {
		m.buckets[bucket] = ""
	}
	m.pause()
	return shard + " is deleted"
}

func (m *manualShards) deleteConfig(t *testing.T, shard string) {
	t.Helper()
	check(t, m.resource("ShardingConfig", m.pods.namespace).Delete(t.Context(), shard, meta.DeleteOptions{}))
	delete(m.present, shard)
}

// addShard re-creates a deleted shard with some of the unowned buckets. Its name is free once its pods have reported
// that they show nothing.
func (m *manualShards) addShard(t *testing.T) string {
	t.Helper()
	absent := []string{}
	for i := range maxChaosShards {
		if shard := fmt.Sprintf("s%d", i); !m.present[shard] {
			absent = append(absent, shard)
		}
	}
	shard := m.randomName(absent)
	m.waitReleased(t, m.pods.namespace, shard)
	orphans := m.bucketsOf("")
	m.random.Shuffle(len(orphans), func(i, j int) { orphans[i], orphans[j] = orphans[j], orphans[i] })
	orphans = orphans[:m.random.IntN(len(orphans)+1)]
	for _, bucket := range orphans {
		m.recordMove(bucket, shard)
	}
	m.configure(t, shard)
	m.present[shard] = true
	return fmt.Sprintf("%s is there again, with %v", shard, orphans)
}

// adoptBuckets gives all unowned buckets to one shard.
func (m *manualShards) adoptBuckets(t *testing.T) string {
	t.Helper()
	shard, orphans := m.randomName(m.shardNames()), m.bucketsOf("")
	for _, bucket := range orphans {
		m.recordMove(bucket, shard)
	}
	m.configure(t, shard)
	return fmt.Sprintf("%v go to %s", orphans, shard)
}

func (m *manualShards) assignAllBuckets(t *testing.T) {
	t.Helper()
	t.Log("finally: " + m.adoptBuckets(t))
}

func (m *manualShards) removeShards(t *testing.T) {
	t.Helper()
	shards := m.shardNames()
	m.random.Shuffle(len(shards), func(i, j int) { shards[i], shards[j] = shards[j], shards[i] })
	for _, shard := range shards {
		m.deleteConfig(t, shard)
		m.pause()
	}
}

// rootShards is a root whose number of shards changes. Pods of removed shards stay, and see nothing.
type rootShards struct {
	*chaos
	size int
	// more is appended to the root.
	more string
	// bucketNames are the buckets that the root divides.
	bucketNames []string
	// shardNumber returns the number of the shard that owns a bucket, out of `size`, counted from 0.
	shardNumber func(t *testing.T, bucket string, size int) int
}

func (r *rootShards) createShards(t *testing.T) map[string]map[string]string {
	t.Helper()
	r.shardOf = func(pod string) string {
		var number int
		if _, err := fmt.Sscanf(pod, "operator-%d", &number); err != nil {
			return err.Error()
		}
		return rootShardName(number / chaosReplicas)
	}
	r.size = 2
	for _, bucket := range r.bucketNames {
		r.buckets[bucket] = r.ownerOf(t, bucket)
	}
	r.configure(t, "")
	for _, shard := range r.shardNames() {
		r.waitChainContains(t, r.pods.namespace, `shard-selector/`+shard+`"`)
	}
	return r.podsOfShards()
}

// ownerOf returns the shard of a bucket.
func (r *rootShards) ownerOf(t *testing.T, bucket string) string {
	t.Helper()
	return rootShardName(r.shardNumber(t, bucket, r.size))
}

func (r *rootShards) shardNames() []string { return rootShardNames(r.size) }

// podsOfShards returns the pods of all current shards.
func (r *rootShards) podsOfShards() map[string]map[string]string {
	pods := map[string]map[string]string{}
	for i := range r.size * chaosReplicas {
		pods[fmt.Sprintf("operator-%d", i)] = nil
	}
	return pods
}

func (r *rootShards) configure(t *testing.T, more string) {
	t.Helper()
	root := rootConfig("root", rootPrefix, r.size, r.more+"\n    "+more)
	r.apply(t, r.pods.namespace, strings.Replace(root, "everyShardReplicas: 1", fmt.Sprintf("everyShardReplicas: %d", chaosReplicas), 1))
}

// editShards changes the number of shards.
func (r *rootShards) editShards(t *testing.T) string {
	t.Helper()
	before := r.size
	// Any number but the current one.
	r.size = 1 + (before+r.random.IntN(maxChaosShards-1))%maxChaosShards
	for bucket := range r.buckets {
		r.recordMove(bucket, r.ownerOf(t, bucket))
	}
	r.configure(t, "")
	r.pause()
	if r.size > before {
		// Before its shard exists, a new pod would be in no shard.
		for _, shard := range r.shardNames() {
			r.waitChainContains(t, r.pods.namespace, `shard-selector/`+shard+`"`)
		}
		r.startReplicas(t, r.podsOfShards())
	}
	return fmt.Sprintf("%d shards, there were %d", r.size, before)
}

func (r *rootShards) assignAllBuckets(*testing.T) {}

func (r *rootShards) removeShards(t *testing.T) {
	t.Helper()
	r.configure(t, "disable: true")
}

// keyedShards is a root that divides objects by a hash. The objects have no labels but the one by which operators select
// them, because objects of earlier rounds are there, too.
type keyedShards struct {
	*rootShards
	key string
}

func (k *keyedShards) createShards(t *testing.T) map[string]map[string]string {
	t.Helper()
	created := newKeyedObjects(t, k.controlPlane, k.key, uniqueName("e2e-"+k.key), uniqueName("objects"))
	created.learnDivisions(t, k.mesh, 3, 1, 2)
	k.objects, k.bucketNames = created.objectSet, created.names
	k.more, k.shardNumber = keyField(k.key), created.shardNumber
	return k.rootShards.createShards(t)
}
