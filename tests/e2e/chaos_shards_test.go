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

// This file has the two ways in which chaos_test.go makes shards.

// byHand is one ShardingConfig for each shard. Pods stay when theirs is deleted, and show nothing then.
type byHand struct {
	*chaos
	present map[string]bool
}

// handBuckets of all shards, two each at first.
const handBuckets = 2 * chaosShards

func (w *byHand) begins(t *testing.T) map[string]map[string]string {
	t.Helper()
	w.present = map[string]bool{}
	w.shardOf = func(pod string) string { return pod[:strings.LastIndex(pod, "-")] }
	for i := range handBuckets {
		w.buckets[fmt.Sprint(i)] = fmt.Sprintf("s%d", i%chaosShards)
	}
	pods := map[string]map[string]string{}
	for i := range chaosShards {
		shard := fmt.Sprintf("s%d", i)
		w.configure(t, shard)
		w.present[shard] = true
		for n := range chaosReplicas {
			pods[fmt.Sprintf("%s-%d", shard, n)] = map[string]string{"shard": shard}
		}
	}
	for _, shard := range w.shards() {
		w.reaches(t, "ShardingConfig", w.pods.namespace, shard, "Distributed", meta.ConditionTrue)
	}
	return pods
}

func (w *byHand) shards() []string { return slices.Sorted(maps.Keys(w.present)) }

// configure writes the ShardingConfig of a shard as the buckets are now. One value belongs to no object: a shard may be empty.
// All are buckets, since the manager takes the label `shard` for that of the hash.
func (w *byHand) configure(t *testing.T, shard string) {
	t.Helper()
	var number int
	must(fmt.Sscanf(shard, "s%d", &number))(t)
	values := []string{}
	for _, bucket := range append(w.owned(shard), fmt.Sprint(handBuckets+number)) {
		values = append(values, strconv.Quote(bucket))
	}
	w.apply(t, w.pods.namespace, shardConfig(shard, values...))
}

func (w *byHand) edits(t *testing.T) string {
	t.Helper()
	ways := []func(*testing.T) string{w.rests}
	if len(w.present) > 1 {
		ways = append(ways, w.movesOne, w.movesOne, w.movesOne, w.deletes, w.deletes)
	}
	if len(w.present) < chaosShards {
		ways = append(ways, w.adds, w.adds)
	}
	if len(w.owned("")) > 0 {
		ways = append(ways, w.adopts)
	}
	return ways[w.random.IntN(len(ways))](t)
}

func (w *byHand) rests(*testing.T) string {
	w.waits()
	return "no edit"
}

// movesOne edits two objects. Whichever is first: where it is the winner, both claim the bucket for a moment.
func (w *byHand) movesOne(t *testing.T) string {
	t.Helper()
	loser := w.oneOf(w.shards())
	own := w.owned(loser)
	if len(own) == 0 {
		return w.rests(t)
	}
	bucket := w.oneOf(own)
	winner := w.oneOf(slices.DeleteFunc(w.shards(), func(shard string) bool { return shard == loser }))
	w.moves(bucket, winner)
	order := []string{loser, winner}
	if w.random.IntN(2) == 0 {
		slices.Reverse(order)
	}
	w.configure(t, order[0])
	w.waits()
	w.configure(t, order[1])
	return fmt.Sprintf("%s goes from %s to %s, %s is edited first", bucket, loser, winner, order[0])
}

// deletes one shard of several. Its objects are nobody's from then on.
func (w *byHand) deletes(t *testing.T) string {
	t.Helper()
	shard := w.oneOf(w.shards())
	w.removes(t, shard)
	for _, bucket := range w.owned(shard) {
		w.buckets[bucket] = ""
	}
	w.waits()
	return shard + " is deleted"
}

func (w *byHand) removes(t *testing.T, shard string) {
	t.Helper()
	check(t, w.resource("ShardingConfig", w.pods.namespace).Delete(t.Context(), shard, meta.DeleteOptions{}))
	delete(w.present, shard)
}

// adds a shard that was deleted, with some of what is nobody's. Its name is free when its pods have said that they show nothing.
func (w *byHand) adds(t *testing.T) string {
	t.Helper()
	absent := []string{}
	for i := range chaosShards {
		if shard := fmt.Sprintf("s%d", i); !w.present[shard] {
			absent = append(absent, shard)
		}
	}
	shard := w.oneOf(absent)
	w.released(t, w.pods.namespace, shard)
	orphans := w.owned("")
	w.random.Shuffle(len(orphans), func(i, j int) { orphans[i], orphans[j] = orphans[j], orphans[i] })
	orphans = orphans[:w.random.IntN(len(orphans)+1)]
	for _, bucket := range orphans {
		w.moves(bucket, shard)
	}
	w.configure(t, shard)
	w.present[shard] = true
	return fmt.Sprintf("%s is there again, with %v", shard, orphans)
}

// adopts gives what is nobody's to one shard.
func (w *byHand) adopts(t *testing.T) string {
	t.Helper()
	shard, orphans := w.oneOf(w.shards()), w.owned("")
	for _, bucket := range orphans {
		w.moves(bucket, shard)
	}
	w.configure(t, shard)
	return fmt.Sprintf("%v go to %s", orphans, shard)
}

func (w *byHand) mends(t *testing.T) {
	t.Helper()
	t.Log("at last " + w.adopts(t))
}

func (w *byHand) ends(t *testing.T) {
	t.Helper()
	shards := w.shards()
	w.random.Shuffle(len(shards), func(i, j int) { shards[i], shards[j] = shards[j], shards[i] })
	for _, shard := range shards {
		w.removes(t, shard)
		w.waits()
	}
}

// byRoot is a root, whose number of shards changes. Pods of those that are gone stay, and show nothing then.
type byRoot struct {
	*chaos
	size int
}

func (w *byRoot) begins(t *testing.T) map[string]map[string]string {
	t.Helper()
	w.shardOf = func(pod string) string {
		var number int
		if _, err := fmt.Sscanf(pod, "operator-%d", &number); err != nil {
			return err.Error()
		}
		return w.name(number / chaosReplicas)
	}
	w.size = 2
	for _, bucket := range []string{"0", "11", "14", "20", "22", "31"} {
		w.buckets[bucket] = w.name(evenShard(t, bucket, w.size))
	}
	w.configure(t, "")
	for _, shard := range w.shards() {
		w.settings(t, w.pods.namespace, `shard-selector/`+shard+`"`)
	}
	return w.itsPods()
}

func (w *byRoot) name(number int) string { return fmt.Sprintf("%s-%d-normal", rootPrefix, number+1) }

func (w *byRoot) shards() []string {
	names := []string{}
	for i := range w.size {
		names = append(names, w.name(i))
	}
	return names
}

// itsPods are those of all shards that there are.
func (w *byRoot) itsPods() map[string]map[string]string {
	pods := map[string]map[string]string{}
	for i := range w.size * chaosReplicas {
		pods[fmt.Sprintf("operator-%d", i)] = nil
	}
	return pods
}

func (w *byRoot) configure(t *testing.T, more string) {
	t.Helper()
	root := rootConfig("root", rootPrefix, w.size, more)
	w.apply(t, w.pods.namespace, strings.Replace(root, "everyShardReplicas: 1", fmt.Sprintf("everyShardReplicas: %d", chaosReplicas), 1))
}

// edits the number of shards.
func (w *byRoot) edits(t *testing.T) string {
	t.Helper()
	before := w.size
	// Any number but the one that there is.
	w.size = 1 + (before+w.random.IntN(chaosShards-1))%chaosShards
	for bucket := range w.buckets {
		w.moves(bucket, w.name(evenShard(t, bucket, w.size)))
	}
	w.configure(t, "")
	w.waits()
	if w.size > before {
		// Before that a new pod would be in no shard.
		for _, shard := range w.shards() {
			w.settings(t, w.pods.namespace, `shard-selector/`+shard+`"`)
		}
		w.startReplicas(t, w.itsPods())
	}
	return fmt.Sprintf("%d shards, there were %d", w.size, before)
}

func (w *byRoot) mends(*testing.T) {}

func (w *byRoot) ends(t *testing.T) {
	t.Helper()
	w.configure(t, "disable: true")
}
