package main

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/cache"
)

const (
	// heapReadings are taken at this interval: the objects of the first list may still be reconciled, which leaves garbage.
	heapReadings = 20
	heapInterval = 50 * time.Millisecond
)

// costRecorder records once what the operator has cost when its cache has all objects.
type costRecorder struct {
	cache   cache.Cache
	kind    string
	journal *journalWriter
}

// Start waits for the cache. It writes a record "cpu" with the user and system time so far in microseconds, and then a
// record "heap" with the bytes in use.
func (c *costRecorder) Start(ctx context.Context) error {
	if _, err := c.cache.GetInformer(ctx, newObject(c.kind)); err != nil {
		return err
	}
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return err
	}
	cpu := time.Duration(used.Utime.Nano() + used.Stime.Nano())
	c.journal.write(record{Event: "cpu", Detail: fmt.Sprint(cpu.Microseconds())})
	heap, err := heapInUse(ctx)
	if err != nil {
		return err
	}
	c.journal.write(record{Event: "heap", Detail: fmt.Sprint(heap)})
	return nil
}

// heapInUse collects garbage several times, and returns the fewest bytes of spans that are in use afterwards.
func heapInUse(ctx context.Context) (uint64, error) {
	ticks := time.NewTicker(heapInterval)
	defer ticks.Stop()
	var memory runtime.MemStats
	fewest := ^uint64(0)
	for range heapReadings {
		runtime.GC()
		runtime.ReadMemStats(&memory)
		fewest = min(fewest, memory.HeapInuse)
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-ticks.C:
		}
	}
	return fewest, nil
}
