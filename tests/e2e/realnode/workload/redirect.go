package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// redirect sets the rules of an init container of the iptables mode, by netlink.
func redirect(args []string) error {
	address, err := netip.ParseAddr(args[0])
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(args[1], 10, 16)
	if err != nil {
		return err
	}
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "redirect"})
	chain := c.AddChain(&nftables.Chain{
		Name: "output", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest,
	})
	const destination, destinationPort, http = 16, 2, 80
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: destination, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: address.AsSlice()},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: destinationPort, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, http)},
		&expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, uint16(port))},
		&expr.Redir{RegisterProtoMin: 1},
	}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("redirect port 80 of %s: %w", address, err)
	}
	fmt.Printf("redirecting port 80 of %s to %d\n", address, port)
	return nil
}
