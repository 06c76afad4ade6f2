package main

import (
	binaryencoding "encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// redirectLine is the netlink batch that makes these rules the only ones of our table, message by message. Without
// servers the batch removes the table.
type redirectLine struct {
	Family  uint8    `json:"family"`
	Servers []string `json:"servers"`
	Port    uint16   `json:"port"`
	User    uint32   `json:"user"`
	// Messages as they are sent, except for the echo flag that google/nftables sets, and without sequence numbers.
	Messages []binary `json:"messages"`
}

func redirects() []redirectLine {
	v4, v6 := uint8(nftables.TableFamilyIPv4), uint8(nftables.TableFamilyIPv6)
	lines := []redirectLine{
		{Family: v4, Port: 5443, User: 1359, Servers: []string{"10.96.0.1:443"}},
		{Family: v4, Port: 5443, User: 1359, Servers: []string{"10.96.0.1:443", "192.0.2.255:6443"}},
		{Family: v4, Port: 65535, User: 0, Servers: []string{"255.255.255.254:1"}},
		{Family: v4, Port: 5443, User: 1359},
		{Family: v6, Port: 5443, User: 1359, Servers: []string{"[fd00:10:96::1]:443"}},
		{Family: v6, Port: 1, User: 4294967294, Servers: []string{"[2001:db8::ffff]:6443", "[fd00:10:96::1]:443"}},
		{Family: v6, Port: 5443, User: 1359},
	}
	for i := range lines {
		lines[i].Messages = lines[i].encode()
	}
	return lines
}

func (l redirectLine) encode() []binary {
	var sent []binary
	c, err := nftables.New(nftables.WithTestDial(func(messages []netlink.Message) ([]netlink.Message, error) {
		for _, message := range messages {
			message.Header.Flags &^= netlink.HeaderFlags(unix.NLM_F_ECHO)
			message.Header.Length = uint32(16 + len(message.Data))
			message.Header.Sequence, message.Header.PID = 0, 0
			bytes, err := message.MarshalBinary()
			must(err)
			sent = append(sent, bytes)
		}
		return nil, nil
	}))
	must(err)
	table := &nftables.Table{Family: nftables.TableFamily(l.Family), Name: "ctrlmesh"}
	c.AddTable(table)
	c.DelTable(table)
	if len(l.Servers) > 0 {
		c.AddTable(table)
		// Priority just before iptables and others, whose rules may redirect everything.
		priority := *nftables.ChainPriorityNATDest - 1
		chain := c.AddChain(&nftables.Chain{
			Name: "output", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: &priority,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeySKUID, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: nativeUint32(l.User)},
			&expr.Verdict{Kind: expr.VerdictReturn},
		}})
		for _, server := range l.Servers {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: redirect(netip.MustParseAddrPort(server), l.Port)})
		}
	}
	// No acknowledgements are requested.
	_ = c.Flush()
	return sent
}

func redirect(server netip.AddrPort, to uint16) []expr.Any {
	address := server.Addr().AsSlice()
	offset := uint32(16)
	if server.Addr().Is6() {
		offset = 24
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(len(address))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: address},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: bigEndian(server.Port())},
		&expr.Immediate{Register: 1, Data: bigEndian(to)},
		&expr.Redir{RegisterProtoMin: 1},
	}
}

func bigEndian(port uint16) []byte { return binaryencoding.BigEndian.AppendUint16(nil, port) }

// nativeUint32 encodes a number in the machine's byte order: user ids are compared as registers hold them.
func nativeUint32(number uint32) []byte { return binaryencoding.NativeEndian.AppendUint32(nil, number) }
