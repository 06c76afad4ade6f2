package cluster

import (
	"context"
	"fmt"
	"path/filepath"

	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// tokenSeconds is the lifetime of a service-account token: longer than a test run.
const tokenSeconds = 3600

// AdminConfig is a client-go configuration for direct requests to the API server, without a rate limit.
func (c *Cluster) AdminConfig() *rest.Config {
	return &rest.Config{
		Host: c.URL(),
		TLSClientConfig: rest.TLSClientConfig{
			CAData: c.CA.PEM, CertData: c.admin.Cert, KeyData: c.admin.Key,
		},
		QPS: -1,
	}
}

// UserKubeconfig writes a kubeconfig of a user with a client certificate and returns its path. The user has no
// permissions unless RBAC grants some.
func (c *Cluster) UserKubeconfig(user string, groups ...string) (string, error) {
	pair, err := c.CA.IssueClient(user, groups...)
	if err != nil {
		return "", err
	}
	return c.kubeconfig(user, &api.AuthInfo{ClientCertificateData: pair.Cert, ClientKeyData: pair.Key})
}

// ServiceAccountToken creates the service account if it does not exist, and returns a bound token for it.
func (c *Cluster) ServiceAccountToken(ctx context.Context, namespace, name string) (string, error) {
	client, err := kubernetes.NewForConfig(c.AdminConfig())
	if err != nil {
		return "", err
	}
	accounts := client.CoreV1().ServiceAccounts(namespace)
	if _, err := accounts.Get(ctx, name, meta.GetOptions{}); err != nil {
		account := &core.ServiceAccount{ObjectMeta: meta.ObjectMeta{Name: name}}
		if _, err := accounts.Create(ctx, account, meta.CreateOptions{}); err != nil {
			return "", fmt.Errorf("create service account %s/%s: %w", namespace, name, err)
		}
	}
	seconds := int64(tokenSeconds)
	request := &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{ExpirationSeconds: &seconds}}
	answer, err := accounts.CreateToken(ctx, name, request, meta.CreateOptions{})
	if err != nil {
		return "", err
	}
	return answer.Status.Token, nil
}

// TokenKubeconfig writes a kubeconfig of a service account and returns its path.
func (c *Cluster) TokenKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	token, err := c.ServiceAccountToken(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	return c.kubeconfig(namespace+"-"+name, &api.AuthInfo{Token: token})
}

func (c *Cluster) kubeconfig(name string, user *api.AuthInfo) (string, error) {
	return WriteKubeconfig(c.Dir, name, &api.Cluster{Server: c.URL(), CertificateAuthorityData: c.CA.PEM}, user)
}

// WriteKubeconfig writes `<dir>/<name>.kubeconfig` for one cluster and one user and returns its path.
func WriteKubeconfig(dir, name string, server *api.Cluster, user *api.AuthInfo) (string, error) {
	path := filepath.Join(dir, name+".kubeconfig")
	config := api.NewConfig()
	config.Clusters["e2e"] = server
	config.AuthInfos[name] = user
	config.Contexts["e2e"] = &api.Context{Cluster: "e2e", AuthInfo: name}
	config.CurrentContext = "e2e"
	return path, clientcmd.WriteToFile(*config, path)
}
