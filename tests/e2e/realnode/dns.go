package realnode

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
)

const (
	clusterDomain = "cluster.local"
	// dnsTTL in seconds is short, because pods come and go.
	dnsTTL = 1
	// datagram is the largest size of a query (RFC 1035, 4.2.1).
	datagram = 512
)

// startDNS serves DNS for the node's pods in place of CoreDNS, by the Kubernetes DNS specification: addresses of
// Services, of the pods behind a headless Service, and of each such pod by its host name. No other name exists.
func (n *Node) startDNS(s *serviceProxy) error {
	var socket net.PacketConn
	err := n.network.inNamespace(func() error {
		var err error
		socket, err = net.ListenPacket("udp4", net.JoinHostPort(IP, "53"))
		return err
	})
	if err != nil {
		return fmt.Errorf("serve DNS on the node: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.serveDNS(socket)
	}()
	n.cleanups = append(n.cleanups, func() { socket.Close(); <-done })
	return nil
}

func (s *serviceProxy) serveDNS(socket net.PacketConn) {
	buffer := make([]byte, datagram)
	for {
		size, client, err := socket.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			var answer []byte
			if answer, err = s.answerQuery(buffer[:size]); err == nil {
				_, err = socket.WriteTo(answer, client)
			}
		}
		if err != nil {
			fmt.Fprintln(s.log, time.Now().Format(time.RFC3339Nano), "DNS:", err)
		}
	}
}

func (s *serviceProxy) answerQuery(query []byte) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil {
		return nil, err
	}
	question, err := parser.Question()
	if err != nil {
		return nil, err
	}
	addresses, exists := resolve(question.Name.String(), s.serviceStore.List(), s.sliceStore.List())
	answer := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired, RecursionAvailable: true},
		Questions: []dnsmessage.Question{question},
	}
	if !exists {
		answer.RCode = dnsmessage.RCodeNameError
	}
	for _, address := range addresses {
		if question.Type == dnsmessage.TypeA && address.Is4() {
			answer.Answers = append(answer.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Type: question.Type, Class: question.Class, TTL: dnsTTL},
				Body:   &dnsmessage.AResource{A: address.As4()},
			})
		}
	}
	return answer.Pack()
}

// resolve finds `[<host>.]<service>.<namespace>.svc.cluster.local.`.
func resolve(name string, allServices, allSlices []any) ([]netip.Addr, bool) {
	name, ok := strings.CutSuffix(strings.ToLower(name), ".svc."+clusterDomain+".")
	labels := strings.Split(name, ".")
	if !ok || len(labels) < 2 || len(labels) > 3 {
		return nil, false
	}
	host, labels := strings.Join(labels[:len(labels)-2], ""), labels[len(labels)-2:]
	for _, object := range allServices {
		service := object.(*core.Service)
		if service.Name != labels[0] || service.Namespace != labels[1] {
			continue
		}
		if address, err := netip.ParseAddr(service.Spec.ClusterIP); err == nil {
			return []netip.Addr{address}, host == ""
		}
		found := endpointAddresses(service, host, allSlices)
		return found, host == "" || len(found) > 0
	}
	return nil, false
}

// endpointAddresses returns the pods of a headless Service, or those with this host name.
func endpointAddresses(service *core.Service, name string, allSlices []any) []netip.Addr {
	var found []netip.Addr
	for _, slice := range slicesOf(service, allSlices) {
		for _, endpoint := range slice.Endpoints {
			if !isReady(endpoint) || name != "" && (endpoint.Hostname == nil || *endpoint.Hostname != name) {
				continue
			}
			for _, text := range endpoint.Addresses {
				if address, err := netip.ParseAddr(text); err == nil {
					found = append(found, address)
				}
			}
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return slices.Compact(found)
}

func slicesOf(service *core.Service, allSlices []any) []*discovery.EndpointSlice {
	var found []*discovery.EndpointSlice
	for _, object := range allSlices {
		slice := object.(*discovery.EndpointSlice)
		if slice.Namespace == service.Namespace && slice.Labels[discovery.LabelServiceName] == service.Name && slice.AddressType == discovery.AddressTypeIPv4 {
			found = append(found, slice)
		}
	}
	return found
}

func isReady(endpoint discovery.Endpoint) bool {
	return endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
}
