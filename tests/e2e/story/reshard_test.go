package story

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// This file moves objects to another pod while the operator is at work.

// loadInterval keeps more than one replica busy at a time, and leaves a small machine room.
const loadInterval = 20 * time.Millisecond

func (s *story) isResharded(t *testing.T) {
	o := s.main
	loser, winner := o.pod(1), o.pod(2)
	stop := o.load(t)
	o.teams[1], o.teams[2] = []string{"team-d"}, []string{"team-b", "team-c"}
	begin := time.Now()
	o.apply(t, o.shards())
	o.enforced(t)
	t.Logf("team-b was with %s instead of %s after %s; %d steps were asked for meanwhile", winner, loser, rounded(time.Since(begin)), stop())
	o.handled(t)
	o.oneOwnerAtATime(t, map[string]string{"team-b": loser})
	o.sees(t, loser, "team-d")
	o.sees(t, winner, "team-b", "team-c")
}

// load asks for steps of random objects until the returned function is called, which tells how many it asked for.
func (o *operator) load(t *testing.T) (stop func() int) {
	t.Helper()
	ended, done := make(chan struct{}), make(chan int)
	keys := slices.Sorted(maps.Keys(o.steps))
	go func() {
		tick := time.NewTicker(loadInterval)
		defer tick.Stop()
		for asked := 0; ; asked++ {
			select {
			case <-ended:
				done <- asked
				return
			case <-t.Context().Done():
				return
			case <-tick.C:
			}
			if err := o.step(t.Context(), keys[rand.IntN(len(keys))]); err != nil && t.Context().Err() == nil {
				t.Errorf("ask for a step: %v", err)
			}
		}
	}()
	return func() int {
		close(ended)
		return <-done
	}
}
