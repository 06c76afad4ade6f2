package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file moves objects between the shards of operators that are at work, by editing ShardingConfigs, while managers and sidecars
// die: at no time are two operators owner of an object, and in the end each object has one. ownership_test.go proves it.

const (
	// reshardsVariable says how often buckets are moved; a run by hand takes 100 (README.md).
	reshardsVariable = "CTRLMESH_RESHARDS"
	defaultReshards  = 6
	liveShards       = 3
	liveBuckets      = 6
	// longestPause between two things that happen, so that they meet in all ways.
	longestPause = 400 * time.Millisecond
)

// live is three shards of real operators at work.
type live struct {
	*survivors
	pods      *pods
	fleet     *fleet
	operators map[string]*operator
	// buckets maps values of the label `shard` to the shard that has them.
	buckets map[string]string
	log     *ownership
}

func TestReshardLive(t *testing.T) {
	t.Parallel()
	l := newLive(t)
	stopLoad := l.fleet.load(t, true)
	for i := range reshards(t) {
		l.move(t, i)
	}
	l.waitsForWhoIsStuck(t)
	steps := stopLoad()
	for shard := range l.operators {
		l.reaches(t, "ShardingConfig", l.pods.namespace, shard, "Enforced", meta.ConditionTrue)
	}
	l.fleet.stepAll(t)
	owners := map[string]*operator{}
	for bucket, shard := range l.buckets {
		owners[bucket] = l.operators[shard]
	}
	l.fleet.settled(t, owners)
	writes := l.log.judge(t)
	t.Logf("%d steps were asked for, %d writes followed", steps, writes)
}

func reshards(t *testing.T) int {
	t.Helper()
	if text := os.Getenv(reshardsVariable); text != "" {
		return must(strconv.Atoi(text))(t)
	}
	return defaultReshards
}

func newLive(t *testing.T) *live {
	t.Helper()
	l := &live{survivors: newSurvivors(t), operators: map[string]*operator{}, buckets: map[string]string{}}
	names := []string{}
	for i := range liveBuckets {
		names = append(names, fmt.Sprintf("b%d", i))
		l.buckets[names[i]] = fmt.Sprintf("s%d", i%liveShards)
	}
	namespace := l.namespace(t)
	l.pods = startPods(t, l.controlPlane, namespace, podOptions{publicKey: l.publicKey(t), syncPeriod: leaderDies})
	l.fleet = newFleet(t, l.controlPlane, "ConfigMap", 2, 2, names...)
	l.log = followOwnership(t, l.fleet, l.buckets, nil)
	for i := range liveShards {
		l.configure(t, fmt.Sprintf("s%d", i))
	}
	for i := range liveShards {
		l.reaches(t, "ShardingConfig", namespace, fmt.Sprintf("s%d", i), "Distributed", meta.ConditionTrue)
	}
	for i := range liveShards {
		shard := fmt.Sprintf("s%d", i)
		l.pods.create(t, shard, map[string]string{"shard": shard})
		l.operators[shard] = startOperator(t, shard, kubeconfig(t, l.pods.ready(t, shard)), "--app="+l.fleet.app)
	}
	return l
}

// configure writes the ShardingConfig of a shard as the buckets are now. One value belongs to no object: a shard may be empty.
func (l *live) configure(t *testing.T, shard string) {
	t.Helper()
	values := []string{"none-" + shard}
	for _, bucket := range slices.Sorted(maps.Keys(l.buckets)) {
		if l.buckets[bucket] == shard {
			values = append(values, bucket)
		}
	}
	l.apply(t, l.pods.namespace, shardConfig(shard, values...))
}

// move gives a bucket to another shard, and something may die meanwhile.
func (l *live) move(t *testing.T, i int) {
	t.Helper()
	bucket := fmt.Sprintf("b%d", rand.IntN(liveBuckets))
	loser := l.buckets[bucket]
	winner := fmt.Sprintf("s%d", rand.IntN(liveShards))
	for winner == loser {
		winner = fmt.Sprintf("s%d", rand.IntN(liveShards))
	}
	victim := []string{"nothing", "the manager", loser, winner}[i%4]
	died := l.kill(t, victim)
	l.log.moves(bucket, winner)
	l.buckets[bucket] = winner
	// Whichever is first: where it is the winner, two objects claim the bucket for a moment.
	order := []string{loser, winner}
	if rand.IntN(2) == 0 {
		slices.Reverse(order)
	}
	l.configure(t, order[0])
	pause()
	l.configure(t, order[1])
	<-died
	l.replaceDead(t)
	begin := time.Now()
	if i%2 == 0 {
		pause()
		t.Logf("%s: %s to %s, %s first, %s died", bucket, loser, winner, order[0], victim)
		return
	}
	l.reaches(t, "ShardingConfig", l.pods.namespace, winner, "Enforced", meta.ConditionTrue)
	took := time.Since(begin).Round(time.Millisecond)
	t.Logf("%s: %s to %s, %s first, %s died; enforced after %s", bucket, loser, winner, order[0], victim, took)
}

// waitsForWhoIsStuck: a sidecar that does not answer may still have requests under way, so nobody else gets what it had.
func (l *live) waitsForWhoIsStuck(t *testing.T) {
	t.Helper()
	const bucket = "b0"
	loser := l.buckets[bucket]
	winner := map[string]string{"s0": "s1", "s1": "s2", "s2": "s0"}[loser]
	for shard := range l.operators {
		l.reaches(t, "ShardingConfig", l.pods.namespace, shard, "Enforced", meta.ConditionTrue)
	}
	stuck := l.pods.sidecar(loser)
	check(t, stuck.Process.Pause())
	l.log.moves(bucket, winner)
	l.buckets[bucket] = winner
	l.configure(t, loser)
	l.configure(t, winner)
	eventually(t, "the winner waits, and says for whom", func() error {
		got, _, err := l.progress(t.Context(), "ShardingConfig", l.pods.namespace, winner)
		if err != nil {
			return err
		}
		for _, condition := range got.Conditions {
			if condition.Status == meta.ConditionFalse && strings.Contains(condition.Message, loser) {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %s", told(got.Conditions))
	})
	document := must(l.document(t.Context(), l.pods.namespace))(t)
	if strings.Contains(document, `"`+bucket+`"`) {
		t.Errorf("%s is in the chain while %s may still have it: %s", bucket, loser, document)
	}
	check(t, stuck.Process.Resume())
	l.reaches(t, "ShardingConfig", l.pods.namespace, winner, "Enforced", meta.ConditionTrue)
}

// pause varies the moment of what comes next.
func pause() { time.Sleep(rand.N(longestPause)) }

// kill ends something at a moment soon, and tells when it is done.
func (l *live) kill(t *testing.T, victim string) <-chan struct{} {
	t.Helper()
	died := make(chan struct{})
	end := func() {}
	switch victim {
	case "nothing":
	case "the manager":
		end = leader(t, l.managers...).Process.Kill
	default:
		end = l.pods.sidecar(victim).Process.Kill
	}
	time.AfterFunc(rand.N(2*longestPause), func() {
		end()
		close(died)
	})
	return died
}
