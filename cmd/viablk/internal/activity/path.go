package activity

// PathRow is what a path did in an interval.
type PathRow struct {
	*HostPath
	Share float64 // of the requests of all paths; -1 without any
}

// pathRows compares the paths of an export with earlier ones.
func pathRows(now, earlier []HostPath) []PathRow {
	before := make(map[string]uint64, len(earlier))
	for i := range earlier {
		before[earlier[i].Host] = earlier[i].Requests
	}
	rows, total := make([]PathRow, 0, len(now)), uint64(0)
	did := func(p *HostPath) uint64 {
		if n, known := before[p.Host]; known {
			return since(p.Requests, n)
		}
		return 0 // it is new, or there is no earlier state
	}
	for i := range now {
		total += did(&now[i])
	}
	for i := range now {
		r := PathRow{&now[i], -1}
		if total > 0 {
			r.Share = float64(did(&now[i])) / float64(total)
		}
		rows = append(rows, r)
	}
	return rows
}
