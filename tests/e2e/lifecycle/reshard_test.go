package lifecycle

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// This file moves objects to another pod while the operator works.

// loadInterval keeps more than one replica busy at a time, without overloading a small machine.
const loadInterval = 20 * time.Millisecond

func (l *lifecycle) testReshard(t *testing.T) {
	op := l.mainOperator
	losing, gaining := op.podName(1), op.podName(2)
	stop := op.startLoad(t)
	op.teams[1], op.teams[2] = []string{"team-d"}, []string{"team-b", "team-c"}
	begin := time.Now()
	op.apply(t, op.shardingConfigs())
	op.waitEnforced(t)
	t.Logf("team-b moved to %s from %s within %s; %d steps were requested meanwhile", gaining, losing, rounded(time.Since(begin)), stop())
	op.assertStepsHandled(t)
	op.assertOneOwnerAtATime(t, map[string]string{"team-b": losing})
	op.assertVisible(t, losing, "team-d")
	op.assertVisible(t, gaining, "team-b", "team-c")
}

// startLoad requests steps of random objects until the returned function is called, which returns their number.
func (op *operator) startLoad(t *testing.T) (stop func() int) {
	t.Helper()
	ended, done := make(chan struct{}), make(chan int)
	keys := slices.Sorted(maps.Keys(op.steps))
	go func() {
		tick := time.NewTicker(loadInterval)
		defer tick.Stop()
		for requested := 0; ; requested++ {
			select {
			case <-ended:
				done <- requested
				return
			case <-t.Context().Done():
				return
			case <-tick.C:
			}
			if err := op.requestStep(t.Context(), keys[rand.IntN(len(keys))]); err != nil && t.Context().Err() == nil {
				t.Errorf("request a step: %v", err)
			}
		}
	}()
	return func() int {
		close(ended)
		return <-done
	}
}
