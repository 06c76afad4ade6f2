package e2e

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file creates objects that a root divides by a hash (docs/sharding.md), and finds the shard of each: it reads the
// virtual ranges of the shards, and computes the hash of the object.

const (
	virtualRangeCount = 1024
	// hashBitsOfRange are the lower bits of a hash, which do not choose the range.
	hashBitsOfRange = 54

	keyedNamespaces         = 12
	controllersPerNamespace = 3
)

// keyedObjects are objects of a root with a key. Each is a bucket of its own.
type keyedObjects struct {
	*objectSet
	key string
	// hashed maps each object to the text whose hash chooses its range.
	hashed map[string]string
	// divisions maps numbers of shards to the division among them.
	divisions map[int]division
}

// division has the number of the shard of each virtual range, counted from 0.
type division [virtualRangeCount]int

// newKeyedObjects creates namespaces with a common prefix. In each are ConfigMaps that have a child, which names them as
// its controller. Without `app` they have no labels.
func newKeyedObjects(t *testing.T, plane controlPlane, key, prefix, app string) *keyedObjects {
	t.Helper()
	set := &objectSet{app: app, kind: "ConfigMap", plane: plane, objects: map[string]string{}, steps: map[string]int{}, interval: chaosInterval}
	k := &keyedObjects{objectSet: set, key: key, hashed: map[string]string{}, divisions: map[int]division{}}
	for i := range keyedNamespaces {
		name := fmt.Sprintf("%s-%d", prefix, i)
		namespace := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name}}
		_, err := plane.client.CoreV1().Namespaces().Create(t.Context(), namespace, meta.CreateOptions{})
		check(t, err)
		for n := range controllersPerNamespace {
			controller := k.add(t, name, fmt.Sprintf("controller-%d", n), nil)
			k.add(t, name, fmt.Sprintf("child-%d", n), controller)
		}
	}
	return k
}

// add creates an object. `controller` may be nil.
func (k *keyedObjects) add(t *testing.T, namespace, name string, controller *core.ConfigMap) *core.ConfigMap {
	t.Helper()
	object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: name}}
	if k.app != "" {
		object.Labels = map[string]string{"app": k.app}
	}
	if controller != nil {
		reference := meta.NewControllerRef(controller, core.SchemeGroupVersion.WithKind("ConfigMap"))
		object.OwnerReferences = []meta.OwnerReference{*reference}
	}
	created := must(k.plane.client.CoreV1().ConfigMaps(namespace).Create(t.Context(), object, meta.CreateOptions{}))(t)
	path := namespace + "/" + name
	k.objects[path] = path
	k.names = append(k.names, path)
	switch {
	case k.key == "namespace":
		k.hashed[path] = namespace
	case k.key == "owner" && controller != nil:
		k.hashed[path] = string(controller.UID)
	default:
		k.hashed[path] = string(created.UID)
	}
	return created
}

// learnDivisions makes a root of each size, one after the other, and reads the ranges of its shards. It does so in a
// namespace without pods, so that no objects are handed over, and no pod is ever given a chain of these roots.
func (k *keyedObjects) learnDivisions(t *testing.T, m *mesh, sizes ...int) {
	t.Helper()
	namespace := m.newNamespace(t)
	t.Cleanup(func() { m.deletePodsAndShards(t, namespace) })
	for _, size := range sizes {
		m.apply(t, namespace, rootConfig("root", rootPrefix, size, keyField(k.key)))
		k.divisions[size] = readDivision(t, k.key, m.waitShards(t, namespace, "root", rootShardNames(size)...))
	}
}

// keyField is the key of a root, for [rootConfig].
func keyField(key string) string { return "key: " + key }

// readDivision reads the ranges of shards, and asserts that each is in exactly one.
func readDivision(t *testing.T, key string, shards []shardObject) division {
	t.Helper()
	var found division
	for i := range found {
		found[i] = -1
	}
	for number, shard := range shards {
		if limits := shard.Spec.Limits; len(limits) != 1 || limits[0].HashRanges.Key != key {
			t.Fatalf("%s has the limits %+v", shard.Metadata.Name, limits)
		}
		for _, text := range shard.Spec.Limits[0].HashRanges.Ranges {
			from, to, isPair := strings.Cut(text, "-")
			if !isPair {
				to = from
			}
			first, last := must(strconv.Atoi(from))(t), must(strconv.Atoi(to))(t)
			for i := first; i <= last; i++ {
				if found[i] >= 0 {
					t.Fatalf("range %d is in shards %d and %d", i, found[i]+1, number+1)
				}
				found[i] = number
			}
		}
	}
	if i := slices.Index(found[:], -1); i >= 0 {
		t.Fatalf("range %d is in no shard", i)
	}
	return found
}

// shardNumber returns the number of the shard that owns an object, out of `size`, counted from 0.
func (k *keyedObjects) shardNumber(t *testing.T, object string, size int) int {
	t.Helper()
	shards, isKnown := k.divisions[size]
	if !isKnown {
		t.Fatalf("the division among %d shards was not read", size)
	}
	return shards[virtualRange(k.key, k.hashed[object])]
}

// virtualRange returns the virtual range of a text, as the sidecar's `wire::objects` does: FNV-1a, for namespaces mixed
// by the finalizer of SplitMix64 (docs/adr/0056).
func virtualRange(key, text string) int {
	fnv1a := fnv.New64a()
	fnv1a.Write([]byte(text))
	hash := fnv1a.Sum64()
	if key == "namespace" {
		hash = (hash ^ hash>>30) * 0xbf58476d1ce4e5b9
		hash = (hash ^ hash>>27) * 0x94d049bb133111eb
		hash ^= hash >> 31
	}
	return int(hash >> hashBitsOfRange)
}
