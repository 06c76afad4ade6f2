package e2e

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	"ctrlmesh.kusionstack.io/e2e/rawhttp"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	"k8s.io/client-go/tools/clientcmd/api"
)

// testTruncatedList: a client must see a broken transfer, never JSON that looks complete, and the sidecar must recover.
func testTruncatedList(t *testing.T, _ *testEnv) {
	cutter := must(rawhttp.NewCutter(shared.cluster.Address))(t)
	defer cutter.Close()
	certificate := must(shared.cluster.CA.IssueClient("cut", "system:masters"))(t)
	chain := shardChain(t, 1, shardRule("s0", "a"))
	s := startSidecar(t, sidecar.Options{Chain: &chain, Kubeconfig: must(cluster.WriteKubeconfig(newDir(t), "cut",
		&api.Cluster{Server: "https://" + cutter.Address, CertificateAuthorityData: shared.cluster.CA.PEM},
		&api.AuthInfo{ClientCertificateData: certificate.Cert, ClientKeyData: certificate.Key}))(t)})

	namespace := newNamespace(t)
	for i := range 4 {
		createConfigMap(t, namespace, fmt.Sprintf("mine-%d", i), map[string]string{"shard": "a"}, map[string]string{"big": incompressibleText(t, 500<<10)})
	}
	request := getRequest("/api/v1/namespaces/" + namespace + "/configmaps")
	assertNarrowed(t, must(sidecarTarget(s).Do(t.Context(), request))(t))

	cutter.CutAfter(1 << 20)
	response, err := sidecarTarget(s).Do(t.Context(), request)
	if err == nil {
		t.Errorf("a complete response of %d bytes, status %d, valid JSON: %v", len(response.Body), response.Status, json.Valid(response.Body))
	}
	cutter.CutAfter(1 << 62)
	eventually(t, "the sidecar responds again", func() error {
		response, err := sidecarTarget(s).Do(t.Context(), request)
		if err != nil {
			return err
		}
		return checkStatus(response, 200)
	})
}

// incompressibleText: of other text, fewer bytes than the limit of the cutter could cross the wire.
func incompressibleText(t *testing.T, length int) string {
	t.Helper()
	random := make([]byte, length/2)
	must(rand.Read(random))(t)
	return hex.EncodeToString(random)
}
