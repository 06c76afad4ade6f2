package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/netns"
	"ctrlmesh.kusionstack.io/e2e/process"
	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// This file runs an operator written with kube-rs (../kube-rs-operator) with leader election in each shard, by
// kubeconfig and with redirected traffic. Its leader election is kube-lease-manager's, which reads the lock, creates
// it, applies it server-side, and patches it. lock_test.go and sharding_test.go test client-go's.

// holderBefore holds the lock that the operator had before it was sharded.
const holderBefore = "somebody-before"

// kubeRSReplicas is an operator with two replicas in each of two shards of a cluster.
type kubeRSReplicas struct {
	*objectSet
	client kubernetes.Interface
	// namespace contains the locks.
	namespace string
	// shards maps the value of the label `shard` to the name of the shard.
	shards map[string]string
	// replicas maps the same values to the shard's replicas.
	replicas map[string][]*operatorProcess
	// lockBefore is the unsharded lock from before.
	lockBefore *coordination.Lease
}

func TestKubeRSLeadsInEachShard(t *testing.T) {
	t.Parallel()
	k := newKubeRSReplicas(t, shared.controlPlane, newNamespace(t))
	for label, shard := range k.shards {
		for range 2 {
			path := sidecarKubeconfig(t, startOperatorSidecar(t, k.namespace, shard, label))
			k.startReplica(t, label, process.Spec{Path: shared.kubeRS, Env: []string{"KUBECONFIG=" + path}})
		}
	}
	k.testLeadership(t)
}

func TestRedirectedKubeRSLeadsInEachShard(t *testing.T) {
	t.Parallel()
	networks := []*netns.Network{}
	for range 4 {
		networks = append(networks, netns.NewForTest(t, netns.Service+"/32"))
	}
	m := newMesh(t)
	createLabelledNamespace(t, m.controlPlane, tlsNamespace, nil)
	putClusterCA(t, m)
	waitLeader(t, m.startManager(t, "manager-0"))
	makeRedirectedPod(t, m)
	k := newKubeRSReplicas(t, m.controlPlane, tlsNamespace)
	token := must(m.cluster.ServiceAccountToken(t.Context(), "default", "sidecar"))(t)
	program := netns.CopyProgram(t, shared.kubeRS)
	for label, shard := range k.shards {
		for range 2 {
			pod := &redirectedPod{Network: networks[0], mesh: m}
			networks = networks[1:]
			bundle := pod.waitProjected(t)
			pod.serveAPI(t)
			pod.startSidecar(t, k.namespace, shardRuleWithLock(shard, label))
			check(t, pod.MountServiceAccount(map[string][]byte{"token": []byte(token), "ca.crt": bundle, "namespace": []byte(k.namespace)}))
			k.startReplica(t, label, process.Spec{Path: program, Env: netns.ServiceEnv(netns.Service), Spawner: pod.Spawner, User: netns.ControllerUser})
		}
	}
	k.testLeadership(t)
}

func newKubeRSReplicas(t *testing.T, plane controlPlane, namespace string) *kubeRSReplicas {
	t.Helper()
	k := &kubeRSReplicas{
		objectSet: newObjectSet(t, plane, "ConfigMap", 2, 5, "a", "b"), client: plane.client, namespace: namespace,
		shards: map[string]string{"a": "s0", "b": "s1"}, replicas: map[string][]*operatorProcess{},
	}
	holder, seconds, now := holderBefore, int32(3600), meta.NowMicro()
	old := &coordination.Lease{
		ObjectMeta: meta.ObjectMeta{Name: lockName},
		Spec:       coordination.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now},
	}
	k.lockBefore = must(k.client.CoordinationV1().Leases(namespace).Create(t.Context(), old, meta.CreateOptions{}))(t)
	return k
}

// startReplica runs one more replica of the shard with this label value.
func (k *kubeRSReplicas) startReplica(t *testing.T, label string, spec process.Spec) {
	t.Helper()
	id := fmt.Sprintf("%s-%d", k.shards[label], len(k.replicas[label]))
	spec.Args = []string{"--app=" + k.app, "--lock=" + lockName, "--lock-namespace=" + k.namespace}
	k.replicas[label] = append(k.replicas[label], runOperator(t, id, spec))
}

// testLeadership tests leader election: one replica of each shard works, another one takes over when it dies, and one
// that ends releases its lock. Nobody touches the unsharded lock.
func (k *kubeRSReplicas) testLeadership(t *testing.T) {
	t.Helper()
	first := k.waitLeaders(t)
	k.assertLeadersWork(t, first)
	for _, leader := range first {
		leader.assertNoFaults(t)
		leader.process.Kill()
	}
	second := k.waitLeaders(t)
	k.assertLeadersWork(t, second)
	for label, leader := range second {
		leader.assertNoFaults(t)
		if leader == first[label] {
			t.Errorf("%s leads although it was killed", leader.id)
		}
		check(t, leader.process.Stop(process.StopGrace))
		if lease := k.shardLease(t, k.shards[label]); lease.Spec.HolderIdentity != nil {
			t.Errorf("%s ended but still holds %s", *lease.Spec.HolderIdentity, lease.Name)
		}
	}
	k.assertOnlyShardLocks(t)
}

// waitLeaders waits until each shard has a leader.
func (k *kubeRSReplicas) waitLeaders(t *testing.T) map[string]*operatorProcess {
	t.Helper()
	leaders := map[string]*operatorProcess{}
	for label, replicas := range k.replicas {
		leaders[label] = waitLeadingOperator(t, replicas...)
	}
	return leaders
}

// assertLeadersWork requests a step of each object, and asserts that the leader of its shard handles it, and no other
// live replica.
func (k *kubeRSReplicas) assertLeadersWork(t *testing.T, leaders map[string]*operatorProcess) {
	t.Helper()
	k.requestStepOfEach(t)
	k.assertHandledByOwners(t, leaders)
	for label, replicas := range k.replicas {
		for _, op := range replicas {
			for _, r := range op.records(t) {
				if op.process.Alive() && op != leaders[label] {
					t.Errorf("operator %s does not lead: %v", op.id, r)
				} else if r.Event == "handled" && k.objects[r.Object] != label {
					t.Errorf("operator %s of shard %s handled %s", op.id, label, r.Object)
				}
			}
		}
		lease := k.shardLease(t, k.shards[label])
		if holder := lease.Spec.HolderIdentity; holder == nil || *holder != leaders[label].id {
			t.Errorf("%s is held by %v, not by %s", lease.Name, holder, leaders[label].id)
		}
		applied := func(by meta.ManagedFieldsEntry) bool { return by.Operation == meta.ManagedFieldsOperationApply }
		if !slices.ContainsFunc(lease.ManagedFields, applied) {
			t.Errorf("no manager has applied %s: %v", lease.Name, lease.ManagedFields)
		}
	}
}

func (k *kubeRSReplicas) shardLease(t *testing.T, shard string) *coordination.Lease {
	t.Helper()
	name := lockName + "---" + shard
	return must(k.client.CoordinationV1().Leases(k.namespace).Get(t.Context(), name, meta.GetOptions{}))(t)
}

// assertOnlyShardLocks asserts that the only other lease is the unsharded lock, unchanged.
func (k *kubeRSReplicas) assertOnlyShardLocks(t *testing.T) {
	t.Helper()
	versions := map[string]string{}
	for _, lease := range must(k.client.CoordinationV1().Leases(k.namespace).List(t.Context(), meta.ListOptions{}))(t).Items {
		versions[lease.Name] = lease.ResourceVersion
	}
	if names := slices.Sorted(maps.Keys(versions)); !slices.Equal(names, []string{lockName, "lock---s0", "lock---s1"}) {
		t.Errorf("the leases are %q", names)
	}
	if now := versions[lockName]; now != k.lockBefore.ResourceVersion {
		t.Errorf("the unsharded lock was at version %s and is at %s", k.lockBefore.ResourceVersion, now)
	}
}
