package realnode

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"
)

// nftRules sets the node's rules by netlink: the kernel needs nf_tables, but the program nft is not needed.
type nftRules struct {
	connection *nftables.Conn
}

const (
	// Offsets of the addresses in an IPv4 header, and of the destination port in a TCP or UDP header.
	sourceOffset, destinationOffset = 12, 16
	portOffset                      = 2
	portUnreachable                 = 3
)

func newRules(namespace int) (*nftRules, error) {
	connection, err := nftables.New(nftables.WithNetNSFd(namespace))
	return &nftRules{connection}, err
}

// replaceAll makes the rules for these ports the only ones, in one transaction. Existing connections are not affected.
func (r *nftRules) replaceAll(ports []servicePort) error {
	c := r.connection
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: "services"}
	c.AddTable(table) // so that deleting it can't fail
	c.DelTable(table)
	c.AddTable(table)
	chain := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Name: name, Table: table, Type: kind, Hooknum: hook, Priority: priority})
	}
	fromPods := chain("from-pods", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	fromNode := chain("from-node", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	toItself := chain("to-itself", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	refusePods := chain("refuse-pods", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	refuseNode := chain("refuse-node", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter)
	add := func(chain *nftables.Chain, parts ...[]expr.Any) {
		rule := &nftables.Rule{Table: table, Chain: chain}
		for _, part := range parts {
			rule.Exprs = append(rule.Exprs, part...)
		}
		c.AddRule(rule)
	}
	for _, port := range ports {
		match := matchPort(port)
		if match == nil {
			continue
		}
		for i, backend := range port.backends {
			for _, chain := range []*nftables.Chain{fromPods, fromNode} {
				add(chain, match, oneInN(len(port.backends)-i), destinationNAT(backend))
			}
			// A pod that reaches itself through a Service would reject its own address as forged.
			address := backend.Addr().AsSlice()
			add(toItself, matchBytes(sourceOffset, address), matchBytes(destinationOffset, address), []expr.Any{&expr.Masq{}})
		}
		// A packet that still has a Service's address has no backend.
		add(refusePods, match, rejectUnreachable())
		add(refuseNode, match, rejectUnreachable())
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("set the rules for %d ports of Services: %w", len(ports), err)
	}
	return nil
}

// matchPort matches packets to a Service; nil for protocols other than TCP and UDP.
func matchPort(port servicePort) []expr.Any {
	protocols := map[core.Protocol]byte{core.ProtocolTCP: unix.IPPROTO_TCP, core.ProtocolUDP: unix.IPPROTO_UDP}
	protocol, ok := protocols[port.protocol]
	if !ok || !port.address.Addr().Is4() {
		return nil
	}
	match := matchBytes(destinationOffset, port.address.Addr().AsSlice())
	return append(match,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: portOffset, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: bigEndian(port.address.Port())},
	)
}

func matchBytes(offset uint32, address []byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(len(address))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: address},
	}
}

// oneInN matches a random one in n connections. Rules with n, n-1, … 1 in a row give each the same share.
func oneInN(n int) []expr.Any {
	if n == 1 {
		return nil
	}
	return []expr.Any{
		&expr.Numgen{Register: 1, Modulus: uint32(n), Type: unix.NFT_NG_RANDOM},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, 0, 0, 0}},
	}
}

func destinationNAT(to netip.AddrPort) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: bigEndian(to.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
	}
}

func rejectUnreachable() []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: portUnreachable}}
}

func bigEndian(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }
