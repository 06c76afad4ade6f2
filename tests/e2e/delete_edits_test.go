package e2e

import (
	"testing"

	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// TestDeleteEditedToDryRunDeletesNothing: a plugin sets dryRun on deletions. client-go sends DeleteOptions in the body,
// and kube-apiserver then ignores the query, so the sidecar has to edit the body, as JSON and as protobuf.
func TestDeleteEditedToDryRunDeletesNothing(t *testing.T) {
	t.Parallel()
	scripted := readPlugin(t, "scripted")
	script := map[string]any{
		"subscribe": []any{map[string]any{"resources": []string{"configmaps"}, "verbs": []string{"delete", "deletecollection"}}},
		"onRequest": []any{map[string]any{"then": map[string]any{
			"proceed": []any{map[string]any{"setQuery": map[string]any{"name": "dryRun", "value": "All"}}},
		}}},
	}
	chain := sidecar.NewChain(1, sidecar.NewEntry("scripted/dry-run", scripted, script)).WithPlugins(scripted)
	s := startSidecar(t, sidecar.Options{Chain: &chain})
	namespace := newNamespace(t)
	object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "kept"}}
	must(shared.client.CoreV1().ConfigMaps(namespace).Create(t.Context(), object, meta.CreateOptions{}))(t)
	seconds := int64(0)
	for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		config := clientConfig(s)
		config.ContentType = contentType
		maps := must(kubernetes.NewForConfig(config))(t).CoreV1().ConfigMaps(namespace)
		for _, options := range []meta.DeleteOptions{{}, {GracePeriodSeconds: &seconds}} {
			check(t, maps.Delete(t.Context(), "kept", options))
			check(t, maps.DeleteCollection(t.Context(), options, meta.ListOptions{}))
			if _, err := shared.client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "kept", meta.GetOptions{}); err != nil {
				t.Fatalf("%s: a deletion with dryRun was carried out: %v", contentType, err)
			}
		}
	}
}
