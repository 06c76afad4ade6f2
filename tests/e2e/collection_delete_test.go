package e2e

import (
	"fmt"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/sidecar"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// This file tests that a shard with hash ranges deletes its own objects of a collection only (docs/adr/0061), with
// client-go.

func TestCollectionDeleteSparesOtherShards(t *testing.T) {
	s := startShardSidecar(t, fenceRule("uid"))
	for name, content := range map[string]string{"json": runtime.ContentTypeJSON, "protobuf": runtime.ContentTypeProtobuf} {
		client := must(kubernetes.NewForConfig(contentConfig(s, content)))(t)
		t.Run(name, func(t *testing.T) { testDividedCollection(t, client) })
	}
	t.Run("missing_rights", func(t *testing.T) { testMissingRightsToDelete(t, s) })
}

// testDividedCollection deletes a collection with an object of the shard and one of another, first in a dry run.
func testDividedCollection(t *testing.T, client *kubernetes.Clientset) {
	namespace := newNamespace(t)
	objects := newFencedObjects(t, fencedConfigMaps, namespace)
	own, other := objects.add(t, "mine", true), objects.add(t, "foreign", false)
	configMaps := client.CoreV1().ConfigMaps(namespace)
	dryRun := meta.DeleteOptions{DryRun: []string{meta.DryRunAll}}
	check(t, configMaps.DeleteCollection(t.Context(), dryRun, meta.ListOptions{}))
	objects.assertUnchanged(t, own)
	check(t, configMaps.DeleteCollection(t.Context(), meta.DeleteOptions{}, meta.ListOptions{}))
	if found := objects.find(t, "mine"); !isGone(found) {
		t.Errorf("the object of the shard was not deleted: %v", found)
	}
	objects.assertUnchanged(t, other)
	assertRequests(t, namespace, map[string][]string{"mine": {"delete", "delete"}, "foreign": nil})
}

// testMissingRightsToDelete: who may not list or delete the objects learns which right is missing.
func testMissingRightsToDelete(t *testing.T, s *sidecar.Sidecar) {
	namespace := newNamespace(t)
	newFencedObjects(t, fencedConfigMaps, namespace).add(t, "mine", true)
	config := rest.CopyConfig(clientConfig(s))
	config.BearerToken = must(shared.cluster.ServiceAccountToken(t.Context(), namespace, "deleter"))(t)
	configMaps := must(kubernetes.NewForConfig(config))(t).CoreV1().ConfigMaps(namespace)
	deleteAll := func() error {
		return configMaps.DeleteCollection(t.Context(), meta.DeleteOptions{}, meta.ListOptions{})
	}
	for _, verb := range []string{"list", "delete"} {
		eventually(t, "the missing right is named", func() error {
			err := deleteAll()
			if apierrors.IsForbidden(err) && strings.Contains(err.Error(), fmt.Sprintf("grant the verb %q for this resource", verb)) {
				return nil
			}
			return fmt.Errorf("without the right to %s, the delete of a collection returns %v", verb, err)
		})
		grant(t, namespace, "deleter", verb)
	}
	eventually(t, "the collection is deleted with both rights", deleteAll)
}
