package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
)

// withoutCookie is how many requests of an address are in progress before its
// further ones need a cookie.
const withoutCookie = 8

// hold holds requests of one address until there are so many, and then rejects
// all of them. Those beyond the bound of an address must have had a cookie.
func (r *role) hold(ctx context.Context) error {
	provider := roce.New(roce.Options{})
	at := netip.AddrPortFrom(r.local, 4791)
	nic, err := via.OpenNic(provider, at.String())
	if err != nil {
		return err
	}
	l, err := nic.Listen(via.Address{Host: fmt.Sprintf("%v/%d", at, r.port), Discriminator: "hold"})
	if err != nil {
		return errors.Join(err, nic.Close())
	}
	fmt.Println("listening")
	var pending []*via.ConnRequest
	for err == nil && len(pending) < r.rounds {
		var request *via.ConnRequest
		if request, err = l.Wait(ctx); err == nil {
			pending = append(pending, request)
		}
	}
	challenged := uint64(0)
	for _, e := range provider.Statistics() {
		challenged += e.Manager.Challenged
	}
	if least := r.rounds - withoutCookie; err == nil && int(challenged) < least {
		err = fmt.Errorf("%d requests were asked for a cookie, at least %d must be", challenged, least)
	}
	for _, request := range pending {
		err = errors.Join(err, request.Reject())
	}
	return errors.Join(err, l.Close(), nic.Close())
}
