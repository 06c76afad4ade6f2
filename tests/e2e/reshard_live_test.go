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

// This file moves objects between the shards of busy operators by editing ShardingConfigs, while managers and sidecars
// die. No object ever has two owners, and in the end each has one. ownership_test.go checks it.

const (
	// reshardsVariable is the number of moves; manual runs use 100 (README.md).
	reshardsVariable = "CTRLMESH_RESHARDS"
	defaultReshards  = 6
	liveShardCount   = 3
	liveBucketCount  = 6
	// longestPause bounds the random pauses between events, so that they meet in all orders.
	longestPause = 400 * time.Millisecond
)

// liveOperators are three shards with busy real operators.
type liveOperators struct {
	*managerReplicas
	pods      *nodePods
	objects   *objectSet
	operators map[string]*operatorProcess
	// buckets maps values of the label `shard`, or objects of a root with a key, to the owning shard.
	buckets   map[string]string
	ownership *ownershipLog
}

func TestReshardKeepsOneOwner(t *testing.T) {
	t.Parallel()
	l := newLiveOperators(t)
	stopLoad := l.objects.startLoad(t, true)
	for i := range reshardCount(t) {
		l.moveBucketRandomly(t, i)
	}
	l.testHungSidecar(t)
	steps := stopLoad()
	for shard := range l.operators {
		l.waitConditionWithin(t, handOverTimeout, "ShardingConfig", l.pods.namespace, shard, "Enforced", meta.ConditionTrue)
	}
	l.objects.requestStepOfEach(t)
	l.objects.assertHandledByOwners(t, l.owners())
	writes := l.ownership.assertOwners(t)
	t.Logf("%d steps were requested, %d writes recorded", steps, writes)
}

// owners returns the operator of each bucket.
func (l *liveOperators) owners() map[string]*operatorProcess {
	owners := map[string]*operatorProcess{}
	for bucket, shard := range l.buckets {
		owners[bucket] = l.operators[shard]
	}
	return owners
}

func reshardCount(t *testing.T) int {
	t.Helper()
	if text := os.Getenv(reshardsVariable); text != "" {
		return must(strconv.Atoi(text))(t)
	}
	return defaultReshards
}

func newLiveOperators(t *testing.T) *liveOperators {
	t.Helper()
	l := &liveOperators{managerReplicas: newManagerReplicas(t), operators: map[string]*operatorProcess{}, buckets: map[string]string{}}
	names := []string{}
	for i := range liveBucketCount {
		names = append(names, fmt.Sprintf("b%d", i))
		l.buckets[names[i]] = fmt.Sprintf("s%d", i%liveShardCount)
	}
	namespace := l.newNamespace(t)
	l.pods = startPods(t, l.controlPlane, namespace, podOptions{publicKey: l.waitPublicKey(t), syncPeriod: syncPeriodWithFailover})
	l.objects = newObjectSet(t, l.controlPlane, "ConfigMap", 2, 2, names...)
	l.ownership = watchOwnership(t, l.objects, l.buckets, nil)
	for i := range liveShardCount {
		l.configure(t, fmt.Sprintf("s%d", i))
	}
	for i := range liveShardCount {
		l.waitCondition(t, "ShardingConfig", namespace, fmt.Sprintf("s%d", i), "Distributed", meta.ConditionTrue)
	}
	for i := range liveShardCount {
		shard := fmt.Sprintf("s%d", i)
		l.pods.create(t, shard, map[string]string{"shard": shard})
		l.operators[shard] = startOperator(t, shard, sidecarKubeconfig(t, l.pods.waitReady(t, shard)), "--app="+l.objects.app)
	}
	return l
}

// configure writes the ShardingConfig of a shard for its current buckets. It adds one value that no object has, so that
// a shard may be empty.
func (l *liveOperators) configure(t *testing.T, shard string) {
	t.Helper()
	values := []string{"none-" + shard}
	for _, bucket := range slices.Sorted(maps.Keys(l.buckets)) {
		if l.buckets[bucket] == shard {
			values = append(values, bucket)
		}
	}
	l.apply(t, l.pods.namespace, shardConfig(shard, values...))
}

// moveBucketRandomly gives a bucket to another shard, while a random process may be killed.
func (l *liveOperators) moveBucketRandomly(t *testing.T, i int) {
	t.Helper()
	bucket := fmt.Sprintf("b%d", rand.IntN(liveBucketCount))
	losing := l.buckets[bucket]
	gaining := fmt.Sprintf("s%d", rand.IntN(liveShardCount))
	for gaining == losing {
		gaining = fmt.Sprintf("s%d", rand.IntN(liveShardCount))
	}
	victim := []string{"nothing", "the manager", losing, gaining}[i%4]
	died := l.killAtRandomMoment(t, victim)
	l.ownership.recordMove(bucket, gaining)
	l.buckets[bucket] = gaining
	// If the gaining shard is edited first, two objects claim the bucket for a moment.
	order := []string{losing, gaining}
	if rand.IntN(2) == 0 {
		slices.Reverse(order)
	}
	l.configure(t, order[0])
	randomPause()
	l.configure(t, order[1])
	<-died
	l.replaceDead(t)
	begin := time.Now()
	if i%2 == 0 {
		randomPause()
		t.Logf("%s: %s to %s, %s first, %s died", bucket, losing, gaining, order[0], victim)
		return
	}
	l.waitConditionWithin(t, handOverTimeout, "ShardingConfig", l.pods.namespace, gaining, "Enforced", meta.ConditionTrue)
	took := time.Since(begin).Round(time.Millisecond)
	t.Logf("%s: %s to %s, %s first, %s died; enforced after %s", bucket, losing, gaining, order[0], victim, took)
}

// testHungSidecar: a sidecar that does not answer may still have requests in flight, so nobody else gets its objects.
func (l *liveOperators) testHungSidecar(t *testing.T) {
	t.Helper()
	const bucket = "b0"
	losing := l.buckets[bucket]
	gaining := map[string]string{"s0": "s1", "s1": "s2", "s2": "s0"}[losing]
	for shard := range l.operators {
		l.waitConditionWithin(t, handOverTimeout, "ShardingConfig", l.pods.namespace, shard, "Enforced", meta.ConditionTrue)
	}
	stuck := l.pods.sidecar(losing)
	check(t, stuck.Process.Pause())
	l.ownership.recordMove(bucket, gaining)
	l.buckets[bucket] = gaining
	l.configure(t, losing)
	l.configure(t, gaining)
	eventually(t, "the gaining shard waits, and its condition says for which pod", func() error {
		got, _, err := l.readStatus(t.Context(), "ShardingConfig", l.pods.namespace, gaining)
		if err != nil {
			return err
		}
		for _, condition := range got.Conditions {
			if condition.Status == meta.ConditionFalse && strings.Contains(condition.Message, losing) {
				return nil
			}
		}
		return fmt.Errorf("the conditions are %s", describeConditions(got.Conditions))
	})
	document := must(l.chainDocument(t.Context(), l.pods.namespace))(t)
	if strings.Contains(document, `"`+bucket+`"`) {
		t.Errorf("the chain contains %s although %s may still have it: %s", bucket, losing, document)
	}
	check(t, stuck.Process.Resume())
	l.waitConditionWithin(t, handOverTimeout, "ShardingConfig", l.pods.namespace, gaining, "Enforced", meta.ConditionTrue)
}

// randomPause varies the time of the next event.
func randomPause() { time.Sleep(rand.N(longestPause)) }

// killAtRandomMoment kills a process after a random delay; the returned channel is closed afterwards.
func (l *liveOperators) killAtRandomMoment(t *testing.T, victim string) <-chan struct{} {
	t.Helper()
	died := make(chan struct{})
	end := func() {}
	switch victim {
	case "nothing":
	case "the manager":
		end = waitLeader(t, l.managers...).Process.Kill
	default:
		end = l.pods.sidecar(victim).Process.Kill
	}
	time.AfterFunc(rand.N(2*longestPause), func() {
		end()
		close(died)
	})
	return died
}
