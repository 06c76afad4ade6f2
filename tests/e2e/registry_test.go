package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/registry"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file pulls a user's plugin from a third-party registry and runs it in a sidecar.

// registryPluginShard is a shard whose shard-selector comes from a registry.
const registryPluginShard = `
kind: ShardingConfig
metadata: {name: left}
spec:
  selector: {matchLabels: {shard: left}}
  limits:
  - relateResources: [{apiGroups: [""], resources: [configmaps]}]
    selector: {matchLabels: {value: a}}
  plugins:
  - name: shard-selector
    image: oci://%s/you/plugin:%s
    pullSecret: puller
    verificationKey: %q
`

func TestPluginFromRegistryRunsInSidecar(t *testing.T) {
	t.Parallel()
	r := must(registry.Start(registry.Spec{Dir: newDir(t), Login: true}))(t)
	t.Cleanup(func() { check(t, r.Stop()) })
	m := newMesh(t, "--insecure-registry="+r.Host)
	first := waitLeader(t, m.startManager(t, "manager-0"))
	namespace := m.newNamespace(t)
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	public := must(registry.PublicKey(key))(t)

	ours, other := readPlugin(t, "shard-selector-next"), readPlugin(t, "shard-selector")
	manifest := must(r.Push("you/plugin", "1.0", ours.Bytes))(t)
	m.apply(t, namespace, fmt.Sprintf(registryPluginShard, r.Host, "1.0", public))
	// Each reason is reported, and after the cause is removed the next attempt succeeds.
	m.waitUnresolved(t, namespace, "PullSecret")
	m.createPullSecret(t, namespace, r.Host)
	m.waitUnresolved(t, namespace, "SignatureInvalid")
	check(t, r.Sign("you/plugin", manifest, key))
	m.waitCondition(t, "ShardingConfig", namespace, "left", "PluginsResolved", meta.ConditionTrue)

	p := startPods(t, m.controlPlane, namespace, podOptions{publicKey: m.waitPublicKey(t)})
	p.create(t, "left-0", map[string]string{"app": "operator", "shard": "left"})
	s := p.waitReady(t, "left-0")
	runs := func(digest string) {
		t.Helper()
		check(t, s.WaitStatus(t.Context(), "runs "+digest, func(status sidecar.Status) bool {
			return len(status.Chain.Entries) == 1 && status.Chain.Entries[0].State == "Active" && strings.Contains(status.Raw, digest)
		}))
	}
	runs(ours.Digest())

	// The tag moves, then the registry stops: the next manager pulls nothing and changes nothing.
	must(r.Push("you/plugin", "1.0", other.Bytes))(t)
	check(t, first.Stop())
	second := waitLeader(t, m.startManager(t, "manager-1"))
	m.waitCondition(t, "ShardingConfig", namespace, "left", "PluginsResolved", meta.ConditionTrue)
	runs(ours.Digest())
	check(t, r.Stop())
	check(t, second.Stop())
	waitLeader(t, m.startManager(t, "manager-2"))
	m.waitUnresolved(t, namespace, "RegistryUnavailable")
	m.waitCondition(t, "ShardingConfig", namespace, "left", "Enforced", meta.ConditionTrue)
	runs(ours.Digest())
}

// trappingPluginShard is a shard with a plugin that traps in configure.
const trappingPluginShard = `
kind: ShardingConfig
metadata: {name: left}
spec:
  selector: {matchLabels: {shard: left}}
  limits:
  - relateResources: [{apiGroups: [""], resources: [configmaps]}]
    selector: {matchLabels: {value: a}}
  plugins:
  - name: mine
    image: oci://%s/you/plugin:1.0
    settings: {in: %s}
`

// TestTrapInConfigureRefusesChain: only the sidecar finds out that a plugin traps. It refuses the chain, keeps the one
// it has, and reports why.
func TestTrapInConfigureRefusesChain(t *testing.T) {
	t.Parallel()
	r := must(registry.Start(registry.Spec{Dir: newDir(t)}))(t)
	t.Cleanup(func() { check(t, r.Stop()) })
	m := newMesh(t, "--insecure-registry="+r.Host)
	waitLeader(t, m.startManager(t, "manager-0"))
	namespace := m.newNamespace(t)
	must(r.Push("you/plugin", "1.0", readPlugin(t, "trap").Bytes))(t)
	m.apply(t, namespace, fmt.Sprintf(trappingPluginShard, r.Host, "on-complete"))
	p := startPods(t, m.controlPlane, namespace, podOptions{publicKey: m.waitPublicKey(t)})
	p.create(t, "left-0", map[string]string{"app": "operator", "shard": "left"})
	s := p.waitReady(t, "left-0")
	m.waitCondition(t, "ShardingConfig", namespace, "left", "Enforced", meta.ConditionTrue)
	before := must(s.Status(t.Context()))(t)

	m.apply(t, namespace, fmt.Sprintf(trappingPluginShard, r.Host, "configure"))
	eventually(t, "the trap is reported", func() error {
		found := m.waitCondition(t, "ShardingConfig", namespace, "left", "Enforced", meta.ConditionFalse)
		text := found.condition("Enforced").Message
		if !strings.Contains(text, "left-0 refuses the chain") || !strings.Contains(text, "mine/left") {
			return fmt.Errorf("%s", describeConditions(found.Conditions))
		}
		return nil
	})
	after := must(s.Status(t.Context()))(t)
	if after.Refused == nil || after.Chain.Generation != before.Chain.Generation || len(after.Chain.Entries) != 2 {
		t.Errorf("before:\n%s\nafter:\n%s", before.Raw, after.Raw)
	}
	m.apply(t, namespace, fmt.Sprintf(trappingPluginShard, r.Host, "on-response"))
	m.waitCondition(t, "ShardingConfig", namespace, "left", "Enforced", meta.ConditionTrue)
}

// waitUnresolved waits until PluginsResolved of the shard is false for this reason.
func (m *mesh) waitUnresolved(t *testing.T, namespace, reason string) {
	t.Helper()
	eventually(t, reason+" is told", func() error {
		found := m.waitCondition(t, "ShardingConfig", namespace, "left", "PluginsResolved", meta.ConditionFalse)
		if condition := found.condition("PluginsResolved"); condition.Reason != reason {
			return fmt.Errorf("%s", describeConditions(found.Conditions))
		}
		return nil
	})
}

// createPullSecret does the same as `kubectl create secret docker-registry puller`.
func (m *mesh) createPullSecret(t *testing.T, namespace, host string) {
	t.Helper()
	auth := base64.StdEncoding.EncodeToString([]byte(registry.User + ":" + registry.Password))
	config := must(json.Marshal(map[string]any{"auths": map[string]any{host: map[string]any{"auth": auth}}}))(t)
	secret := &core.Secret{
		ObjectMeta: meta.ObjectMeta{Name: "puller"},
		Type:       core.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{core.DockerConfigJsonKey: config},
	}
	_, err := m.client.CoreV1().Secrets(namespace).Create(t.Context(), secret, meta.CreateOptions{})
	check(t, err)
}
