package bench

// Published is what a paper says that a system reached. The conditions are
// those that the papers print; a size that they do not give is 0.
type Published struct {
	System            string  `json:"system"`
	Latency           float64 `json:"latency_us"` // one way, of short messages
	LatencyConditions string  `json:"latency_conditions"`
	MBps              float64 `json:"mb_per_second"`  // of long messages, unless Size says
	Size              int     `json:"size,omitempty"` // bytes, of MBps
	MBpsConditions    string  `json:"mb_per_second_conditions"`
}

// Papers returns what was published about VIA.
func Papers() []Published {
	return []Published{
		{
			"MyVIA", 8.46, "Myrinet-2000, LANai9, 2 x AthlonXP 1.4 GHz; the least, means of 1,000",
			250, 4096, "Myrinet-2000, LANai9, 2 x AthlonXP 1.4 GHz; window of 2,000, receiver need not receive",
		},
		{
			"Berkeley VIA", 25, "Myrinet, UltraSPARC; a few bytes",
			47.46, 0, "Myrinet, LANai4.1, 2 x Pentium III 733 MHz; maximum",
		},
		{
			"cLAN", 24, "cLAN, 125 MB/s link; less than 32 B",
			70, 0, "cLAN, 125 MB/s link; asymptotic",
		},
		{
			"M-VIA", 22, "Intel Pro/100 Ethernet, all in software",
			11.6, 0, "Intel Pro/100 Ethernet, all in software",
		},
		{
			"FirmVIA", 18.2, "IBM SP switch, Netfinity; short messages",
			101.4, 0, "IBM SP switch, Netfinity; peak",
		},
	}
}
