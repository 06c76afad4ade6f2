package e2e

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// This file derives the owner of each object from the operators' writes, in the order of the API server.

// ownershipLog collects the writes of operators to a set of objects, and the intended owners.
type ownershipLog struct {
	objects *objectSet
	// shardOf returns the shard of an operator.
	shardOf func(operator string) string
	stream  watch.Interface
	done    chan struct{}

	mu sync.Mutex
	// tenures of each bucket, oldest first.
	tenures map[string][]tenure
	// writes of each object.
	writes map[string][]observedWrite
}

// tenure is a period of intended ownership. It begins with a person's edit, not when the edit is enforced.
type tenure struct {
	owner string
	since time.Time
	// after is a resource version: writes up to it belong to earlier tenures.
	after uint64
}

// anyOwner as an owner allows every operator, when nothing is sharded.
const anyOwner = "*"

func (t tenure) allows(write observedWrite) bool {
	return (t.owner == anyOwner || t.owner == write.owner) && write.version > t.after
}

// observedWrite is a change by an operator, or an object that its sidecar showed to it.
type observedWrite struct {
	// version is a resource version: the API server's order of writes.
	version uint64
	writer  string
	// owner is the writer's shard, or the writer if each shard has one operator.
	owner string
	// seen is the time of the watch event, which is after the write. Zero if the write was found later.
	seen        time.Time
	description string
	// isSighting means that the object was only shown.
	isSighting bool
}

// watchOwnership watches from now on. Without `shardOf` each operator is a shard of its own.
func watchOwnership(t *testing.T, set *objectSet, buckets map[string]string, shardOf func(operator string) string) *ownershipLog {
	t.Helper()
	if shardOf == nil {
		shardOf = func(operator string) string { return operator }
	}
	o := &ownershipLog{objects: set, shardOf: shardOf, done: make(chan struct{}), tenures: map[string][]tenure{}, writes: map[string][]observedWrite{}}
	for bucket, owner := range buckets {
		o.recordMove(bucket, owner)
	}
	var err error
	o.stream, err = set.plane.client.CoreV1().ConfigMaps("").Watch(t.Context(), set.listOptions())
	check(t, err)
	go o.readWrites()
	return o
}

// recordMove records that a bucket is to have another owner.
func (o *ownershipLog) recordMove(bucket, owner string) {
	o.startTenure(bucket, tenure{owner: owner, since: time.Now()})
}

func (o *ownershipLog) startTenure(bucket string, next tenure) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tenures[bucket] = append(o.tenures[bucket], next)
}

// readWrites records each change of the last handled step.
func (o *ownershipLog) readWrites() {
	defer close(o.done)
	observed := map[string]string{}
	for event := range o.stream.ResultChan() {
		object, isObject := event.Object.(*core.ConfigMap)
		if !isObject || object.Data["observed"] == "" {
			continue
		}
		key := object.Namespace + "/" + object.Name
		if !o.objects.contains(key) {
			continue
		}
		// The same step by another operator counts too: two operators that handle one step would not show otherwise.
		handled := object.Data["observed"] + " by " + object.Data["by"]
		if observed[key] == handled {
			continue // only the next step was requested
		}
		observed[key] = handled
		o.recordWrite(key, object.ResourceVersion, observedWrite{writer: object.Data["by"], seen: time.Now(), description: "recorded step " + object.Data["observed"]})
	}
}

func (o *ownershipLog) recordWrite(key, version string, write observedWrite) {
	number, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		write.description += ": " + err.Error()
	}
	write.version, write.owner = number, o.shardOf(write.writer)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writes[key] = append(o.writes[key], write)
}

// assertOwners adds the children, asserts that only owners wrote to each object, and returns the number of writes.
func (o *ownershipLog) assertOwners(t *testing.T) int {
	t.Helper()
	select {
	case <-o.done:
		t.Error("the watch ended before the test did")
	default:
	}
	o.stream.Stop()
	<-o.done
	o.recordChildren(t)
	count := 0
	for key, writes := range o.writes {
		count += len(writes)
		for _, violation := range ownershipViolations(o.tenures[o.objects.objects[key]], writes) {
			t.Errorf("%s: %s", key, violation)
		}
	}
	return count
}

// ownershipViolations describes writes by operators that were not the owner: after another owner had written, unless
// the object was given back; before the object was given to them; or at any time.
func ownershipViolations(tenures []tenure, writes []observedWrite) []string {
	writes = slices.SortedFunc(slices.Values(writes), func(a, b observedWrite) int { return cmp.Compare(a.version, b.version) })
	found, at := []string{}, 0
	// next is the first tenure that a write may belong to.
	next := func(write observedWrite) int {
		if i := slices.IndexFunc(tenures[at:], func(tenure tenure) bool { return tenure.allows(write) }); i >= 0 {
			return at + i
		}
		return len(tenures)
	}
	for len(writes) > 0 {
		// Sightings between the same two writes have no order.
		same := slices.IndexFunc(writes, func(write observedWrite) bool { return write.version != writes[0].version })
		if same < 0 {
			same = len(writes)
		}
		slices.SortStableFunc(writes[:same], func(a, b observedWrite) int { return cmp.Compare(next(a), next(b)) })
		for _, write := range writes[:same] {
			i := next(write)
			if i == len(tenures) {
				found = append(found, fmt.Sprintf("%s %s (version %d) when %s was owner, of %s", write.writer, write.description, write.version, tenures[at].owner, describeTenures(tenures)))
				continue
			}
			at = i
			if !write.seen.IsZero() && write.seen.Before(tenures[at].since) {
				found = append(found, fmt.Sprintf("%s %s before it was to be owner, of %s", write.writer, write.description, describeTenures(tenures)))
			}
		}
		writes = writes[same:]
	}
	return found
}

func TestOwnershipViolationsAreFound(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	tenures := []tenure{{"a", at(0), 0}, {"b", at(10), 0}, {"a", at(20), 0}, {"c", at(30), 0}, {anyOwner, at(30), 7}}
	write := func(version uint64, by string, second int) observedWrite {
		return observedWrite{version: version, writer: by, owner: by, seen: at(second)}
	}
	for name, test := range map[string]struct {
		writes     []observedWrite
		violations int
	}{
		"one after the other":       {[]observedWrite{write(1, "a", 1), write(2, "b", 11), write(3, "a", 21), write(4, "c", 31)}, 0},
		"by version, not by time":   {[]observedWrite{write(2, "b", 11), write(1, "a", 12)}, 0},
		"an owner who had no time":  {[]observedWrite{write(1, "a", 1), write(2, "c", 31)}, 0},
		"a late write":              {[]observedWrite{write(1, "a", 1), write(2, "b", 11), write(3, "a", 12)}, 1},
		"to and fro":                {[]observedWrite{write(1, "b", 11), write(2, "a", 21), write(3, "b", 22), write(4, "a", 23)}, 1},
		"before it was to be owner": {[]observedWrite{write(1, "a", 1), write(2, "b", 9)}, 1},
		"never an owner":            {[]observedWrite{write(1, "d", 1)}, 1},
		"seen at the same time":     {[]observedWrite{write(1, "b", 11), write(1, "a", 11)}, 0},
		"seen again":                {[]observedWrite{write(1, "b", 11), write(1, "a", 11), write(2, "a", 12)}, 1},
		"without shards":            {[]observedWrite{write(6, "c", 31), write(8, "d", 32), write(9, "a", 33)}, 0},
		"too early without shards":  {[]observedWrite{write(6, "c", 31), write(7, "d", 32)}, 1},
	} {
		if found := ownershipViolations(tenures, test.writes); len(found) != test.violations {
			t.Errorf("%s: %q", name, found)
		}
	}
}

func describeTenures(tenures []tenure) string {
	names := []string{}
	for _, tenure := range tenures {
		names = append(names, tenure.owner)
	}
	return strings.Join(names, ", ")
}

// recordChildren adds the children's creation as writes: they are written only once, so their version is that of their
// creation.
func (o *ownershipLog) recordChildren(t *testing.T) {
	t.Helper()
	namespaces := map[string]bool{}
	for _, key := range o.objects.names {
		namespace, _ := splitKey(key)
		namespaces[namespace] = true
	}
	for namespace := range namespaces {
		list := must(o.objects.plane.client.CoreV1().ConfigMaps(namespace).List(t.Context(), meta.ListOptions{}))(t)
		for _, child := range list.Items {
			if name, step, isChild := strings.Cut(child.Name, "-step-"); isChild {
				o.recordWrite(namespace+"/"+name, child.ResourceVersion, observedWrite{writer: child.Data["by"], description: "created child of step " + step})
			}
		}
	}
}
