package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	"ctrlmesh.kusionstack.io/e2e/rawhttp"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	authentication "k8s.io/api/authentication/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// This file tests whose identity a request has: a request without credentials gets the sidecar's, one with credentials
// keeps its own, however the sidecar authenticates itself.

func TestSidecarAddsCredentialsWhereMissing(t *testing.T) {
	token := must(shared.cluster.ServiceAccountToken(t.Context(), "default", "controller"))(t)
	file := filepath.Join(newDir(t), "token")
	check(t, os.WriteFile(file, []byte(must(shared.cluster.ServiceAccountToken(t.Context(), "default", "by-file"))(t)), 0o600))
	server := &api.Cluster{Server: shared.cluster.URL(), CertificateAuthorityData: shared.cluster.CA.PEM}
	for name, own := range map[string]struct{ kubeconfig, user string }{
		"token":              {shared.kubeconfig, sidecarUser},
		"token_file":         {must(cluster.WriteKubeconfig(newDir(t), "file", server, &api.AuthInfo{TokenFile: file}))(t), "system:serviceaccount:default:by-file"},
		"client_certificate": {must(shared.cluster.UserKubeconfig("certified", "group"))(t), "certified"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startSidecar(t, sidecar.Options{WithoutChainDir: true, Kubeconfig: own.kubeconfig})
			for range 3 {
				assertUser(t, sidecarTarget(s), own.user)
				assertUser(t, sidecarTarget(s), "system:serviceaccount:default:controller", "Authorization: Bearer "+token)
				wrong := must(sidecarTarget(s).Do(t.Context(), selfSubjectReview("Authorization: Bearer wrong")))(t)
				check(t, checkStatus(wrong, http.StatusUnauthorized))
			}
		})
	}
}

// TestKubeconfigTokenIsSentOverTLSOnly: client-go omits the user of a kubeconfig if the server's URL is plain HTTP, so
// the request gets the sidecar's identity (clientcmd.ClientConfig asks rest.IsConfigTransportTLS before it merges the
// user).
func TestKubeconfigTokenIsSentOverTLSOnly(t *testing.T) {
	authority := must(cluster.NewAuthority("sidecar"))(t)
	s := startSidecar(t, sidecar.Options{WithoutChainDir: true, TLSDir: servingDir(t, authority)})
	user := &api.AuthInfo{Token: must(shared.cluster.ServiceAccountToken(t.Context(), "default", "controller"))(t)}
	for name, connection := range map[string]struct {
		server *api.Cluster
		user   string
	}{
		"http":  {&api.Cluster{Server: "http://" + s.API}, sidecarUser},
		"https": {&api.Cluster{Server: "https://" + s.API, CertificateAuthorityData: authority.PEM}, "system:serviceaccount:default:controller"},
	} {
		t.Run(name, func(t *testing.T) {
			file := must(cluster.WriteKubeconfig(newDir(t), "controller", connection.server, user))(t)
			client := must(kubernetes.NewForConfig(must(clientcmd.BuildConfigFromFlags("", file))(t)))(t)
			review := must(client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authentication.SelfSubjectReview{}, meta.CreateOptions{}))(t)
			if got := review.Status.UserInfo.Username; got != connection.user {
				t.Errorf("the user is %q, want %s", got, connection.user)
			}
		})
	}
}

// TestSidecarNeedsNoPermissions: a sidecar sends only requests of its controller to the API server.
func TestSidecarNeedsNoPermissions(t *testing.T) {
	const user, path = "without-permissions", "/api/v1/namespaces/default/configmaps"
	chain := shardChain(t, 1, shardRule("s0", "a"))
	s := startSidecar(t, sidecar.Options{Kubeconfig: must(shared.cluster.UserKubeconfig(user))(t), Chain: &chain})
	assertUser(t, sidecarTarget(s), user)
	refused := must(sidecarTarget(s).Do(t.Context(), getRequest(path)))(t)
	check(t, checkStatus(refused, http.StatusForbidden))
	eventually(t, "both are audited", func() error {
		events := must(shared.cluster.AuditEventsOf(user))(t)
		if len(events) < 2 {
			return fmt.Errorf("%d requests are audited", len(events))
		}
		return nil
	})
	for _, event := range must(shared.cluster.AuditEventsOf(user))(t) {
		if asked, _, _ := strings.Cut(event.RequestURI, "?"); asked != selfSubjectReview().Path && asked != path {
			t.Errorf("the controller did not send %s %s", event.Verb, event.RequestURI)
		}
	}
}

// assertUser asserts the user for whom the API server takes a request.
func assertUser(t *testing.T, target rawhttp.Target, user string, headers ...string) {
	t.Helper()
	response := must(target.Do(t.Context(), selfSubjectReview(headers...)))(t)
	var review authentication.SelfSubjectReview
	check(t, json.Unmarshal(response.Body, &review))
	if got := review.Status.UserInfo.Username; got != user {
		t.Errorf("with %.30q the user is %q, want %s: %.200s", headers, got, user, response.Body)
	}
}
