package realnode

import (
	"context"
	"errors"
	"os"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// startControlPlane starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler on the node.
func (n *Node) startControlPlane(ctx context.Context, options Options) error {
	address, end, err := n.network.forward()
	if err != nil {
		return err
	}
	n.cleanups = append(n.cleanups, end)
	dir := n.path("cluster")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	n.Cluster, err = cluster.Start(ctx, dir, cluster.Options{
		APIServerFlags: options.APIServerFlags,
		Machine:        &cluster.Machine{Spawner: n.spawner, Dial: n.Dial, Address: address, IP: IP},
	})
	if err != nil {
		return err
	}
	if n.Kubeconfig, err = n.Cluster.UserKubeconfig("node-admin", "system:masters"); err != nil {
		return err
	}
	if n.Client, err = kubernetes.NewForConfig(n.Config()); err != nil {
		return err
	}
	return errors.Join(n.startControllerManager(), n.startScheduler())
}

// Config returns an administrator's client-go configuration, without a rate limit.
func (n *Node) Config() *rest.Config { return n.Cluster.AdminConfig() }

func (n *Node) startControllerManager() error {
	kubeconfig, err := n.Cluster.UserKubeconfig("system:kube-controller-manager")
	if err != nil {
		return err
	}
	return n.startProgram("kube-controller-manager", n.programs["kube-controller-manager"],
		"--kubeconfig="+kubeconfig, "--bind-address=127.0.0.1", "--leader-elect=false", "--use-service-account-credentials=true",
		"--service-account-private-key-file="+n.path("cluster", "service-account.key"), "--root-ca-file="+n.path("cluster", "ca.crt"),
		"--service-cluster-ip-range="+cluster.ServiceCIDR,
	)
}

func (n *Node) startScheduler() error {
	kubeconfig, err := n.Cluster.UserKubeconfig("system:kube-scheduler")
	if err != nil {
		return err
	}
	return n.startProgram("kube-scheduler", n.programs["kube-scheduler"],
		"--kubeconfig="+kubeconfig, "--bind-address=127.0.0.1", "--leader-elect=false",
	)
}
