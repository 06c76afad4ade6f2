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

	"ctrlmesh.kusionstack.io/e2e/manager"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file edits the shards of busy operators at random, while managers, sidecars and operators are killed. At no time
// is an object shown to, or written by, operators of two shards. ownership_test.go checks it.

const (
	// chaosRoundsVariable is the number of rounds with labels; `make soak` takes a hundred.
	chaosRoundsVariable = "CTRLMESH_CHAOS_ROUNDS"
	// keyedChaosRoundsVariable is the number of rounds with a key; `make soak` takes a hundred for each key.
	keyedChaosRoundsVariable = "CTRLMESH_CHAOS_KEYED_ROUNDS"
	// chaosSeedVariable is the seed of the first round. Each later round has the next number.
	chaosSeedVariable = "CTRLMESH_CHAOS_SEED"
	// Of three seeds in a row there is one round of each kind: see [TestChaosNeverGivesObjectTwoOwners].
	chaosRounds, chaosSeed = 3, 1
	// Because a round takes a minute, in which no other test runs, there is one with a key.
	keyedChaosRounds = 1

	chaosStepCount = 6
	// At most maxChaosShards shards, with chaosReplicas pods each.
	maxChaosShards, chaosReplicas = 3, 2
	// chaosInterval is the time between two requested steps: six operators and their sidecars share two cores with
	// everything else.
	chaosInterval = 40 * time.Millisecond
	// chaosSyncDelay is the time by which every other pod gets its chain late. A manager that does not wait for the pods
	// which lose objects gives them to others meanwhile.
	chaosSyncDelay = time.Second
	// giveUpTimeout covers the two minutes for which a sidecar waits for a client that must list again (docs/adr/0035),
	// because an operator that was killed lists only when it leads again, and the 15 s in which nobody acts before rules
	// are removed.
	giveUpTimeout = 4 * time.Minute
)

// chaos is one round: operators in pods of several shards, and random events drawn from a seed.
type chaos struct {
	*managerReplicas
	random  *rand.Rand
	pods    *nodePods
	objects *objectSet
	// buckets maps values of the label `shard`, or objects of a root with a key, to the owning shard, which is empty if
	// nobody owns the bucket.
	buckets      map[string]string
	ownership    *ownershipLog
	rulesRemoval *rulesRemoval
	replicas     map[string]*replica
	// shardOf returns the shard of a pod.
	shardOf func(pod string) string
}

// shardSource creates and edits shards.
type shardSource interface {
	// createShards returns the labels of the shards' pods, once they may start.
	createShards(t *testing.T) (pods map[string]map[string]string)
	// editShards makes a random edit and describes it.
	editShards(t *testing.T) string
	// assignAllBuckets gives every bucket an owner.
	assignAllBuckets(t *testing.T)
	// shardNames returns the names of the current ShardingConfigs.
	shardNames() []string
	// removeShards deletes or disables all of them.
	removeShards(t *testing.T)
}

// TestChaosNeverGivesObjectTwoOwners runs rounds with consecutive seeds. Of three seeds in a row, one has manual shards
// that stay, one has manual shards that are all deleted in the end, and one has a root that is resized and finally
// disabled. No other test runs beside it, because leaders would lose their leases on two busy cores.
func TestChaosNeverGivesObjectTwoOwners(t *testing.T) {
	runChaosRounds(t, chaosRoundsVariable, chaosRounds, func(c *chaos, seed int) (source shardSource, isTornDown bool) {
		if seed%3 == 0 {
			return &rootShards{chaos: c, bucketNames: rootBuckets, shardNumber: evenShardNumber}, true
		}
		return &manualShards{chaos: c}, seed%3 == 2
	})
}

// TestChaosNeverGivesObjectOfKeyedRootTwoOwners is the same for a root that divides objects by a hash. Of three seeds in
// a row there is one for each key; roots with an even seed are finally disabled.
func TestChaosNeverGivesObjectOfKeyedRootTwoOwners(t *testing.T) {
	runChaosRounds(t, keyedChaosRoundsVariable, keyedChaosRounds, func(c *chaos, seed int) (source shardSource, isTornDown bool) {
		return &keyedShards{rootShards: &rootShards{chaos: c}, key: rootKeys[seed%len(rootKeys)]}, seed%2 == 0
	})
}

// runChaosRounds runs as many rounds as the variable says. `newSource` makes the shards of a round, and says whether they
// are removed in the end.
func runChaosRounds(t *testing.T, roundsVariable string, rounds int, newSource func(c *chaos, seed int) (source shardSource, isTornDown bool)) {
	t.Helper()
	m := newMesh(t, "--label-shard-hash=shard")
	m.leaseSeconds = manager.LeastLeaseSeconds
	m.setLabelledKinds(t, "")
	first := envNumber(t, chaosSeedVariable, chaosSeed)
	rounds = envNumber(t, roundsVariable, rounds)
	for seed := first; seed < first+rounds; seed++ {
		runRound := func(t *testing.T) {
			c := newChaos(t, m, seed)
			source, isTornDown := newSource(c, seed)
			c.run(t, source, isTornDown)
		}
		if !t.Run(fmt.Sprintf("seed-%d", seed), runRound) {
			t.Fatalf("reproduce this round with %s=%d %s=1 go test -run '^%s$' .", chaosSeedVariable, seed, roundsVariable, t.Name())
		}
	}
}

// envNumber reads a number from an environment variable.
func envNumber(t *testing.T, variable string, fallback int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return fallback
	}
	return must(strconv.Atoi(text))(t)
}

// run runs a round.
func (c *chaos) run(t *testing.T, source shardSource, isTornDown bool) {
	t.Helper()
	c.startOperators(t, source)
	stopLoad := c.objects.startLoad(t, true)
	for i := range chaosStepCount {
		died, victim := c.killSomething(t)
		what := source.editShards(t)
		<-died
		c.replaceDead(t)
		t.Logf("%d. %s; %s died", i+1, what, victim)
		if c.random.IntN(3) == 0 {
			c.waitEnforced(t, source)
		}
	}
	source.assignAllBuckets(t)
	c.waitEnforced(t, source)
	c.assertPodsSeeTheirShards(t)
	if !isTornDown {
		steps := stopLoad()
		c.assertHandledByOwners(t)
		t.Logf("%d steps were requested, %d writes and sightings recorded", steps, c.ownership.assertOwners(t))
		return
	}
	c.tearDownShards(t, source)
	stopLoad()
	c.assertHandledByOne(t)
	t.Logf("%d writes and sightings", c.ownership.assertOwners(t))
}

func newChaos(t *testing.T, m *mesh, seed int) *chaos {
	t.Helper()
	s := &managerReplicas{mesh: m}
	s.managers = append(s.managers, s.startManager(t, uniqueName("manager")), s.startManager(t, uniqueName("manager")))
	waitLeader(t, s.managers...)
	c := &chaos{managerReplicas: s, random: rand.New(rand.NewPCG(uint64(seed), 0)), buckets: map[string]string{}, replicas: map[string]*replica{}}
	namespace := s.newNamespace(t)
	syncDelay := func(pod string) time.Duration { return time.Duration(pod[len(pod)-1]%2) * chaosSyncDelay }
	options := podOptions{publicKey: s.waitPublicKey(t), syncPeriod: syncPeriodWithFailover, syncDelay: syncDelay}
	c.pods = startPods(t, s.controlPlane, namespace, options)
	t.Cleanup(func() { c.cleanUp(t) })
	c.rulesRemoval = watchRulesRemoval(t, m, namespace)
	return c
}

// startOperators creates shards, operators, and objects unless the source has created them.
func (c *chaos) startOperators(t *testing.T, source shardSource) {
	t.Helper()
	pods := source.createShards(t)
	if c.objects == nil {
		c.objects = newObjectSet(t, c.controlPlane, "ConfigMap", 2, 2, slices.Sorted(maps.Keys(c.buckets))...)
	}
	c.objects.interval = chaosInterval
	c.ownership = watchOwnership(t, c.objects, c.buckets, c.shardOf)
	c.startReplicas(t, pods)
	c.waitEnforced(t, source)
}

// killSomething kills a random process, or none, at a random moment.
func (c *chaos) killSomething(t *testing.T) (died <-chan struct{}, victim string) {
	t.Helper()
	done := make(chan struct{})
	kill := func() {}
	pod := c.randomName(slices.Sorted(maps.Keys(c.replicas)))
	switch c.random.IntN(4) {
	case 0:
		victim = "nobody"
	case 1:
		leading := waitLeader(t, c.managers...)
		victim, kill = "the manager", leading.Process.Kill
	case 2:
		victim, kill = "the sidecar of "+pod, c.pods.sidecar(pod).Process.Kill
	case 3:
		victim, kill = "the operator of "+pod, c.replicas[pod].kill
	}
	time.AfterFunc(c.randomDuration(2*longestPause), func() {
		kill()
		close(done)
	})
	return done, victim
}

func (c *chaos) randomName(names []string) string { return names[c.random.IntN(len(names))] }

func (c *chaos) randomDuration(longest time.Duration) time.Duration {
	return time.Duration(c.random.Int64N(int64(longest)))
}

// pause varies the time of the next event, but is seldom long enough for managers to make progress meanwhile.
func (c *chaos) pause() {
	longest := longestPause
	if c.random.IntN(4) == 0 {
		longest *= 10
	}
	time.Sleep(c.randomDuration(longest))
}

// recordMove gives a bucket to a shard. The caller edits the ShardingConfigs.
func (c *chaos) recordMove(bucket, shard string) {
	if c.buckets[bucket] != shard {
		c.ownership.recordMove(bucket, shard)
		c.buckets[bucket] = shard
	}
}

// bucketsOf returns the buckets of a shard, or the unowned ones if it is empty.
func (c *chaos) bucketsOf(shard string) []string {
	found := []string{}
	for _, bucket := range slices.Sorted(maps.Keys(c.buckets)) {
		if c.buckets[bucket] == shard {
			found = append(found, bucket)
		}
	}
	return found
}

func (c *chaos) waitEnforced(t *testing.T, source shardSource) {
	t.Helper()
	for _, shard := range source.shardNames() {
		c.waitConditionWithin(t, giveUpTimeout, "ShardingConfig", c.pods.namespace, shard, "Enforced", meta.ConditionTrue)
	}
}

// assertPodsSeeTheirShards asserts that each pod sees all objects of its shard, and no others.
func (c *chaos) assertPodsSeeTheirShards(t *testing.T) {
	t.Helper()
	for _, pod := range slices.Sorted(maps.Keys(c.replicas)) {
		want := c.bucketsOf(c.shardOf(pod))
		eventually(t, fmt.Sprintf("%s sees %v", pod, want), func() error {
			shown, _, err := c.replicas[pod].listVisible(t.Context())
			if err != nil {
				return err
			}
			seen := map[string]bool{}
			for _, key := range shown {
				seen[c.objects.objects[key]] = true
			}
			if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
				return fmt.Errorf("the pod sees %v", got)
			}
			return nil
		})
	}
}

// handleAll requests one more step of each object, waits until all are handled, and returns who handled them, by
// object.
func (c *chaos) handleAll(t *testing.T) map[string]string {
	t.Helper()
	c.objects.requestStepOfEach(t)
	by := map[string]string{}
	eventually(t, "every last step is handled", func() error {
		for key, state := range c.objects.states(t) {
			if state.step != state.observed {
				return fmt.Errorf("%s is at step %q, observed is %q by %q", key, state.step, state.observed, state.by)
			}
			by[key] = state.by
		}
		return nil
	})
	return by
}

func (c *chaos) assertHandledByOwners(t *testing.T) {
	t.Helper()
	for key, pod := range c.handleAll(t) {
		if owner := c.buckets[c.objects.objects[key]]; c.shardOf(pod) != owner {
			t.Errorf("%s of %s was handled by %s", key, owner, pod)
		}
	}
}

// assertHandledByOne: once the rules are removed, one operator leads, with the controller's own lock.
func (c *chaos) assertHandledByOne(t *testing.T) {
	t.Helper()
	c.handleAll(t)
	if writers := c.ownership.writersAfter(c.rulesRemoval.version()); len(writers) != 1 {
		t.Errorf("%v have written since the rules were removed", writers)
	}
}

// tearDownShards removes the last shards under load, re-creates the pods that conditions name, and waits until no rule
// is left.
func (c *chaos) tearDownShards(t *testing.T, source shardSource) {
	t.Helper()
	since := time.Now()
	died, victim := c.killSomething(t)
	source.removeShards(t)
	<-died
	c.replaceDead(t)
	t.Logf("removing the last shards; %s died", victim)
	successor, made := "", map[string]bool{}
	eventuallyWithin(t, giveUpTimeout, "the last shards are gone", func() error {
		left := c.shardNamesIn(t, c.pods.namespace)
		for _, shard := range left {
			if c.isSuccessor(t, shard) {
				successor = shard
			}
			for _, pod := range c.podsToRecreate(t, shard) {
				if !made[pod] {
					c.recreatePod(t, pod)
					made[pod] = true
				}
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("%v are left", left)
		}
		return nil
	})
	eventually(t, "the chain has no rules", c.rulesRemoval.checkRemoved)
	t.Logf("%s was the successor, %v were re-created", successor, slices.Sorted(maps.Keys(made)))
	for bucket, owner := range c.buckets {
		if owner != successor {
			c.ownership.startTenure(bucket, tenure{owner: successor, since: since})
		}
		c.ownership.startTenure(bucket, tenure{owner: anyOwner, since: since, after: c.rulesRemoval.version()})
	}
}

// isSuccessor reports whether a shard's condition says that the shard gets everything.
func (c *chaos) isSuccessor(t *testing.T, shard string) bool {
	t.Helper()
	found, _, err := c.readStatus(t.Context(), "ShardingConfig", c.pods.namespace, shard)
	reason := found.condition("Distributed").Reason
	return err == nil && (reason == "Gathering" || reason == "LocksExpiring")
}

// podsToRecreate returns the pods that a shard's condition tells people to delete.
func (c *chaos) podsToRecreate(t *testing.T, shard string) []string {
	t.Helper()
	found, _, err := c.readStatus(t.Context(), "ShardingConfig", c.pods.namespace, shard)
	got := found.condition("Distributed")
	if err != nil || got.Reason != "Gathering" {
		return nil // the shard may be gone
	}
	_, names, _ := strings.Cut(got.Message, " delete pods ")
	names, _, _ = strings.Cut(names, "`")
	return strings.Fields(names)
}
