// Package nemesis has clients read and write a remote disk while it kills,
// drains, stops and cuts off the processes of the disk, and checks that the
// disk is linearizable all the same.
//
//	4 connections × 6 requests ─▶ attach ─▶ target ─▶ disk
//	        │                       ▲         ▲
//	        ▼                       └─ faults ┘
//	 history.Monitor
//
// Operations and kills bound a run, not time: the faults come between
// operations. The flags -session.operations and -session.kills make it longer.
//
// Tests alone use the package.
package nemesis
