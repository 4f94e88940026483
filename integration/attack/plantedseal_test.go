package attack

import "testing"

// plantedSeals are bugs of what seals payload and proves keys.
var plantedSeals = []plantedBug{
	{
		"a record is sealed twice with one nonce",
		[]edit{{"internal/seal/payload.go", "case p.keys == nil || uint32(record) < p.next:", "case p.keys == nil:"}},
		map[string][]string{"internal/seal": {"TestNoncesAreUsedOnce"}},
	},
	{
		"two payloads have the nonces of one command",
		[]edit{{"internal/seal/payload.go", "\tif s.claimed {\n", "\tif false {\n"}},
		map[string][]string{"internal/seal": {"TestOnePayloadForACommand"}},
	},
	{
		"what is opened is not the copy that was authenticated",
		[]edit{{"internal/seal/payload.go", "\t\tclear(dst)\n\t\treturn ErrForged\n\t}\n\treturn nil\n}\n\n// SealAll", `		clear(dst)
		return ErrForged
	}
	for i := range dst {
		b[i] ^= dst[i] // the key stream
	}
	for i := range dst {
		dst[i] = src[i] ^ b[i]
	}
	return nil
}

// SealAll`}},
		map[string][]string{"internal/seal": {"TestPeerChangesMemoryAmidOpens"}},
	},
	{
		"proofs are not compared",
		[]edit{{"internal/seal/session.go", "\twant, err := s.Proof(end, parts...)\n\treturn hmac.Equal(want[:], proof[:]) && err == nil", "\t_, err := s.Proof(end, parts...)\n\treturn err == nil"}},
		map[string][]string{"internal/seal": {"TestProof"}, "internal/handshake": {"TestChangedJoins"}},
	},
}

// TestPlantedSeals: each edit fits the sources; with -attack.planted the tests
// of seals and joins find each bug.
func TestPlantedSeals(t *testing.T) { findPlanted(t, plantedSeals) }
