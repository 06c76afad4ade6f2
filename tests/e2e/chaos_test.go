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

// This file walks at random through what a person may do to the shards of operators at work, while managers, sidecars and operators
// are killed: at no time is an object shown to, or written by, operators of two shards. ownership_test.go proves it.

const (
	// chaosRoundsVariable says how many rounds there are; `make soak` takes a hundred.
	chaosRoundsVariable = "CTRLMESH_CHAOS_ROUNDS"
	// chaosSeedVariable is the seed of the first round. Each one after it has the next number.
	chaosSeedVariable = "CTRLMESH_CHAOS_SEED"
	// Three seeds in a row have one round of each kind: see [TestChaos].
	chaosRounds, chaosSeed = 3, 1

	chaosSteps = 6
	// chaosShards at most, with so many pods each.
	chaosShards, chaosReplicas = 3, 2
	// chaosInterval is between two steps that are asked for: six operators and their sidecars share two cores with everything else.
	chaosInterval = 40 * time.Millisecond
	// endPatience covers the 15 s in which nobody acts, before rules go, and the two minutes for which a sidecar takes a client that
	// was sent to list again for alive (docs/adr/0035): an operator that was killed then lists no more.
	endPatience = 4 * time.Minute
)

// chaos is a round: operators in pods of several shards, with what happens to them drawn from a seed.
type chaos struct {
	*survivors
	random *rand.Rand
	pods   *pods
	fleet  *fleet
	// buckets maps values of the label `shard` to the shard that has them, or to nobody.
	buckets  map[string]string
	log      *ownership
	rules    *rulesEnd
	replicas map[string]*replica
	// shardOf a pod.
	shardOf func(pod string) string
}

// walk is how shards are made.
type walk interface {
	// begins makes the shards, and returns when their pods may start.
	begins(t *testing.T) (pods map[string]map[string]string)
	// edits something, and tells what.
	edits(t *testing.T) string
	// mends leaves no object without an owner.
	mends(t *testing.T)
	// shards that there are, by the names of their ShardingConfigs.
	shards() []string
	// ends deletes or disables all of them.
	ends(t *testing.T)
}

// TestChaos: of three seeds in a row, one has shards made by hand that go on, one has its last shards deleted in the end, and one has
// a root, which is resized and disabled in the end. No other test runs beside its operators: on two cores leaders would lose their
// leases for want of time.
func TestChaos(t *testing.T) {
	m := newMesh(t, "--label-shard-hash=shard")
	m.labels(t, "")
	first, rounds := number(t, chaosSeedVariable, chaosSeed), number(t, chaosRoundsVariable, chaosRounds)
	for seed := first; seed < first+rounds; seed++ {
		if !t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) { chaosRound(t, m, seed) }) {
			t.Fatalf("one more time: %s=%d %s=1 go test -run TestChaos .", chaosSeedVariable, seed, chaosRoundsVariable)
		}
	}
}

// number of an environment variable.
func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	return must(strconv.Atoi(text))(t)
}

func chaosRound(t *testing.T, m *mesh, seed int) {
	c := newChaos(t, m, seed)
	var w walk = &byHand{chaos: c}
	if seed%3 == 0 {
		w = &byRoot{chaos: c}
	}
	c.starts(t, w)
	stopLoad := c.fleet.load(t, true)
	for i := range chaosSteps {
		died, victim := c.kills(t)
		what := w.edits(t)
		<-died
		c.replaceDead(t)
		t.Logf("%d. %s; %s died", i+1, what, victim)
		if c.random.IntN(3) == 0 {
			c.enforced(t, w)
		}
	}
	w.mends(t)
	c.enforced(t, w)
	c.showsItsOwn(t)
	if seed%3 == 1 {
		steps := stopLoad()
		c.handledByOwners(t)
		t.Logf("%d steps were asked for, %d writes and sightings followed", steps, c.log.judge(t))
		return
	}
	c.unshards(t, w)
	stopLoad()
	c.handledByOne(t)
	t.Logf("%d writes and sightings", c.log.judge(t))
}

func newChaos(t *testing.T, m *mesh, seed int) *chaos {
	t.Helper()
	s := &survivors{mesh: m}
	s.managers = append(s.managers, s.start(t, unique("manager")), s.start(t, unique("manager")))
	leader(t, s.managers...)
	c := &chaos{survivors: s, random: rand.New(rand.NewPCG(uint64(seed), 0)), buckets: map[string]string{}, replicas: map[string]*replica{}}
	namespace := s.namespace(t)
	c.pods = startPods(t, s.controlPlane, namespace, podOptions{publicKey: s.publicKey(t), syncPeriod: leaderDies})
	t.Cleanup(func() { c.clears(t) })
	c.rules = followRules(t, m, namespace)
	return c
}

// starts makes shards, objects and operators.
func (c *chaos) starts(t *testing.T, w walk) {
	t.Helper()
	pods := w.begins(t)
	c.fleet = newFleet(t, c.controlPlane, "ConfigMap", 2, 2, slices.Sorted(maps.Keys(c.buckets))...)
	c.fleet.interval = chaosInterval
	c.log = followOwnership(t, c.fleet, c.buckets, c.shardOf)
	c.startReplicas(t, pods)
	c.enforced(t, w)
}

// victims of a kill, with nobody among them.
func (c *chaos) kills(t *testing.T) (died <-chan struct{}, victim string) {
	t.Helper()
	over := make(chan struct{})
	end := func() {}
	pod := c.oneOf(slices.Sorted(maps.Keys(c.replicas)))
	switch c.random.IntN(4) {
	case 0:
		victim = "nobody"
	case 1:
		leading := leader(t, c.managers...)
		victim, end = "the manager", leading.Process.Kill
	case 2:
		victim, end = "the sidecar of "+pod, c.pods.sidecar(pod).Process.Kill
	case 3:
		victim, end = "the operator of "+pod, c.replicas[pod].kill
	}
	time.AfterFunc(c.moment(2*longestPause), func() {
		end()
		close(over)
	})
	return over, victim
}

func (c *chaos) oneOf(names []string) string { return names[c.random.IntN(len(names))] }

func (c *chaos) moment(longest time.Duration) time.Duration {
	return time.Duration(c.random.Int64N(int64(longest)))
}

// waits varies the moment of what comes next, seldom so much that managers have gone on meanwhile.
func (c *chaos) waits() {
	longest := longestPause
	if c.random.IntN(4) == 0 {
		longest *= 10
	}
	time.Sleep(c.moment(longest))
}

// moves gives a bucket to a shard. The caller edits.
func (c *chaos) moves(bucket, shard string) {
	if c.buckets[bucket] != shard {
		c.log.moves(bucket, shard)
		c.buckets[bucket] = shard
	}
}

// owned are the buckets of a shard, or of nobody.
func (c *chaos) owned(shard string) []string {
	found := []string{}
	for _, bucket := range slices.Sorted(maps.Keys(c.buckets)) {
		if c.buckets[bucket] == shard {
			found = append(found, bucket)
		}
	}
	return found
}

func (c *chaos) enforced(t *testing.T, w walk) {
	t.Helper()
	for _, shard := range w.shards() {
		c.reaches(t, "ShardingConfig", c.pods.namespace, shard, "Enforced", meta.ConditionTrue)
	}
}

// showsItsOwn demands of each pod that it sees all buckets of its shard, and no others.
func (c *chaos) showsItsOwn(t *testing.T) {
	t.Helper()
	for _, pod := range slices.Sorted(maps.Keys(c.replicas)) {
		want := c.owned(c.shardOf(pod))
		eventually(t, fmt.Sprintf("%s sees %v", pod, want), func() error {
			shown, _, err := c.replicas[pod].shown(t.Context())
			if err != nil {
				return err
			}
			seen := map[string]bool{}
			for _, key := range shown {
				seen[c.fleet.objects[key]] = true
			}
			if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
				return fmt.Errorf("it sees %v", got)
			}
			return nil
		})
	}
}

// handled asks for one more step of each object and waits until all are done; it returns who did the last, by object.
func (c *chaos) handled(t *testing.T) map[string]string {
	t.Helper()
	c.fleet.stepAll(t)
	by := map[string]string{}
	eventually(t, "every last step is handled", func() error {
		for key, state := range c.fleet.states(t) {
			if state.step != state.observed {
				return fmt.Errorf("%s is at step %q, handled is %q by %q", key, state.step, state.observed, state.by)
			}
			by[key] = state.by
		}
		return nil
	})
	return by
}

func (c *chaos) handledByOwners(t *testing.T) {
	t.Helper()
	for key, pod := range c.handled(t) {
		if owner := c.buckets[c.fleet.objects[key]]; c.shardOf(pod) != owner {
			t.Errorf("%s of %s was handled by %s", key, owner, pod)
		}
	}
}

// handledByOne: without rules one operator leads, by the controller's own lock.
func (c *chaos) handledByOne(t *testing.T) {
	t.Helper()
	c.handled(t)
	if writers := c.log.writersAfter(c.rules.version()); len(writers) != 1 {
		t.Errorf("since there are no rules %v have written", writers)
	}
}

// unshards has the last shards deleted under load, makes those pods again that conditions name, and waits until no rule is left.
func (c *chaos) unshards(t *testing.T, w walk) {
	t.Helper()
	since := time.Now()
	died, victim := c.kills(t)
	w.ends(t)
	<-died
	c.replaceDead(t)
	t.Logf("the last shards go; %s died", victim)
	successor, made := "", map[string]bool{}
	within(t, endPatience, "the last shards are gone", func() error {
		left := c.shardsOf(t, c.pods.namespace)
		if len(left) == 1 {
			successor = left[0]
		}
		for _, shard := range left {
			for _, pod := range c.toBeMadeAgain(t, shard) {
				if !made[pod] {
					c.remakes(t, pod)
					made[pod] = true
				}
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("there are %v", left)
		}
		return nil
	})
	eventually(t, "the rules are gone", c.rules.left)
	t.Logf("%s got everything, %v were made again", successor, slices.Sorted(maps.Keys(made)))
	for bucket, owner := range c.buckets {
		if owner != successor {
			c.log.begins(bucket, tenure{owner: successor, since: since})
		}
		c.log.begins(bucket, tenure{owner: anybody, since: since, after: c.rules.version()})
	}
}

// toBeMadeAgain are the pods that a shard's condition tells a person to delete.
func (c *chaos) toBeMadeAgain(t *testing.T, shard string) []string {
	t.Helper()
	found, _, err := c.progress(t.Context(), "ShardingConfig", c.pods.namespace, shard)
	got := found.condition("Distributed")
	if err != nil || got.Reason != "Gathering" {
		return nil // it may be gone
	}
	_, names, _ := strings.Cut(got.Message, " delete pods ")
	names, _, _ = strings.Cut(names, "`")
	return strings.Fields(names)
}
