package realnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kubeletConfig: images are never collected and the disk never counts as full, because nothing could be pulled again.
// Kubelet's changes to the machine (its OOM score, iptables chains) are off.
var kubeletConfig = template.Must(template.New("").Parse(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupRoot: /{{.Cgroup}}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
makeIPTablesUtilChains: false
containerRuntimeEndpoint: unix://` + containerdSocket + `
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: "{{.CA}}"}}
authorization: {mode: Webhook}
tlsCertFile: "{{.Cert}}"
tlsPrivateKeyFile: "{{.Key}}"
address: ` + IP + `
clusterDNS: [` + IP + `]
clusterDomain: ` + clusterDomain + `
resolvConf: /etc/resolv.conf
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "50Mi", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%"}
`))

// writeFiles writes the node's /etc, and links that programs expect.
func (n *Node) writeFiles() error {
	files, err := n.containerdFiles()
	if err != nil {
		return err
	}
	files["/etc/hosts"] = "127.0.0.1 localhost\n" + IP + " " + n.Name + "\n"
	files["/etc/passwd"] = "root:x:0:0:root:/root:/bin/sh\n"
	files["/etc/group"] = "root:x:0:\n"
	files["/etc/resolv.conf"] = "search node.invalid\n"
	for name, content := range files {
		path := filepath.Join(n.rootDir(), name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			return err
		}
	}
	for _, dir := range []string{"run", "tmp", "var"} {
		if err := os.MkdirAll(filepath.Join(n.rootDir(), dir), 0o755); err != nil {
			return err
		}
	}
	return errors.Join(os.Chmod(filepath.Join(n.rootDir(), "tmp"), 0o777|os.ModeSticky), os.Symlink("/run", filepath.Join(n.rootDir(), "var", "run")))
}

func (n *Node) startKubelet(ctx context.Context) error {
	kubeconfig, err := n.Cluster.UserKubeconfig("system:node:"+n.Name, "system:nodes")
	if err != nil {
		return err
	}
	pair, err := n.Cluster.CA.IssueServing("system:node:"+n.Name, n.Name, IP)
	if err != nil {
		return err
	}
	cert, key, config := n.path("kubelet.crt"), n.path("kubelet.key"), n.path("kubelet.yaml")
	var text strings.Builder
	if err := kubeletConfig.Execute(&text, map[string]string{
		"Cgroup": n.cgroup.name, "CA": n.path("cluster", "ca.crt"), "Cert": cert, "Key": key,
	}); err != nil {
		return err
	}
	for path, content := range map[string][]byte{cert: pair.Cert, key: pair.Key, config: []byte(text.String())} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return err
		}
	}
	if err := n.allowKubeletClient(ctx); err != nil {
		return err
	}
	return n.startProgram("kubelet", n.programs["kubelet"], "--config="+config, "--kubeconfig="+kubeconfig, "--hostname-override="+n.Name, "--node-ip="+IP)
}

// allowKubeletClient lets the API server fetch logs and run commands, with the group that kubeadm uses.
func (n *Node) allowKubeletClient(ctx context.Context) error {
	binding := &rbac.ClusterRoleBinding{
		ObjectMeta: meta.ObjectMeta{Name: "e2e-kubelet-client"},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "system:kubelet-api-admin"},
		Subjects:   []rbac.Subject{{APIGroup: rbac.GroupName, Kind: rbac.UserKind, Name: cluster.KubeletClient}},
	}
	_, err := n.Client.RbacV1().ClusterRoleBindings().Create(ctx, binding, meta.CreateOptions{})
	return err
}

// waitReady waits until pods can be created and run.
func (n *Node) waitReady(ctx context.Context) error {
	return n.waitUntil(ctx, "the node", func() error {
		node, err := n.Client.CoreV1().Nodes().Get(ctx, n.Name, meta.GetOptions{})
		if err != nil {
			return err
		}
		if len(node.Spec.Taints) > 0 {
			return fmt.Errorf("the node has the taint %s", node.Spec.Taints[0].Key)
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == core.NodeReady && condition.Status != core.ConditionTrue {
				return errors.New(condition.Message)
			}
		}
		_, err = n.Client.CoreV1().ServiceAccounts(meta.NamespaceDefault).Get(ctx, "default", meta.GetOptions{})
		return err
	})
}
