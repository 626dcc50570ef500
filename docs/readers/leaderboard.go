// Reads ranks and counters straight from a region's Redis, with go-redis. It never writes.
//
//	go run leaderboard.go PORT page BOARD WINDOW OFFSET LIMIT
//	go run leaderboard.go PORT rank BOARD WINDOW MEMBER...
//	go run leaderboard.go PORT counter NAME
//
// It prints JSON, and ends with code 75 (try again later) while Redis is being filled. Built with
// `go build` (`go run` turns every failure into code 1).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"github.com/redis/go-redis/v9"
)

const (
	tries    = 10
	tryLater = 75
)

// errNotFilled: what was asked for is not in Redis now: being filled, or a window that is no more.
var errNotFilled = errors.New("not filled")

// Line is one member of a board. ReachedMs is nil where the board keeps no time.
type Line struct {
	Rank      int64  `json:"rank"`
	Member    string `json:"member"`
	Score     int64  `json:"score"`
	ReachedMs *int64 `json:"reached_ms"`
}

// Page is a part of a window.
type Page struct {
	Total   int64  `json:"total"`
	Entries []Line `json:"entries"`
}

// scale is how the numbers of a window are read: what its meta says.
type scale struct {
	power           float64
	epochMs, tickMs int64
	timed           bool
	low             bool
	shared          bool
	turned          bool
}

func scaleOf(meta map[string]string) (scale, error) {
	b, err := strconv.Atoi(meta["b"])
	if err != nil {
		return scale{}, err
	}
	epochMs, err := strconv.ParseInt(meta["epoch_ms"], 10, 64)
	if err != nil {
		return scale{}, err
	}
	tickMs, err := strconv.ParseInt(meta["tick_ms"], 10, 64)
	if err != nil {
		return scale{}, err
	}
	low := meta["order"] == "low"
	return scale{
		power:   math.Ldexp(1, b),
		epochMs: epochMs,
		tickMs:  tickMs,
		timed:   b > 0,
		low:     low,
		shared:  meta["ties"] == "shared",
		// Ticks are kept as they are where the greater number is to be the better or the worse
		// one anyway; else they are counted down from the greatest.
		turned: (meta["ties"] == "last") == low,
	}, nil
}

// line decodes a composite. It has at most 53 bits, so all of this is exact as float64.
func (s scale) line(rank int64, member string, composite float64) Line {
	score := math.Floor(composite / s.power) // floor, also below zero
	found := Line{Rank: rank, Member: member, Score: int64(score)}
	if s.timed {
		tick := composite - score*s.power
		if s.turned {
			tick = s.power - 1 - tick
		}
		reachedMs := s.epochMs + int64(tick)*s.tickMs
		found.ReachedMs = &reachedMs
	}
	return found
}

// bound is a composite as ZCOUNT takes it: what is strictly beyond it.
func bound(composite float64) string {
	return "(" + strconv.FormatFloat(composite, 'f', 0, 64)
}

// look sends commands as one transaction: what they find is of one moment. A member that is not
// there is an answer, and no error.
func look(ctx context.Context, client *redis.Client, commands func(redis.Pipeliner) error) error {
	_, err := client.TxPipelined(ctx, commands)
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// page reads `limit` (at least 1) members of a window behind the first `offset`.
func page(
	ctx context.Context, client *redis.Client, board, window string, offset, limit int64,
) (Page, error) {
	key := "lb:{s0}:" + board + ":" + window
	// With ties `shared` the rank of a page's first member is 1 + how many are better, and that
	// can only be asked with its number: so what one look finds is counted in the next one, which
	// must find it again.
	head := 0.0
	for try := 0; try < tries; try++ {
		var meta *redis.MapStringStringCmd
		var total, below, above *redis.IntCmd
		var lowest, highest *redis.ZSliceCmd
		err := look(ctx, client, func(pipe redis.Pipeliner) error {
			meta = pipe.HGetAll(ctx, key+":meta")
			total = pipe.ZCard(ctx, key)
			lowest = pipe.ZRangeWithScores(ctx, key, offset, offset+limit-1)
			highest = pipe.ZRevRangeWithScores(ctx, key, offset, offset+limit-1)
			below = pipe.ZCount(ctx, key, "-inf", bound(head))
			above = pipe.ZCount(ctx, key, bound(head), "+inf")
			return nil
		})
		if err != nil {
			return Page{}, err
		}
		if len(meta.Val()) == 0 {
			return Page{}, errNotFilled
		}
		its, err := scaleOf(meta.Val())
		if err != nil {
			return Page{}, err
		}
		rows, better := highest.Val(), above.Val()
		if its.low {
			rows, better = lowest.Val(), below.Val()
		}
		if !its.shared || len(rows) == 0 || rows[0].Score == head {
			return Page{total.Val(), ranked(its, rows, offset, better)}, nil
		}
		head = rows[0].Score
	}
	return Page{}, errNotFilled // it changes faster than it is read
}

// ranked makes the lines of a page. `better`: how many are strictly better than its first member.
func ranked(its scale, rows []redis.Z, offset, better int64) []Line {
	lines := make([]Line, 0, len(rows))
	rank := better + 1
	for at, row := range rows {
		if !its.shared || (at > 0 && row.Score != rows[at-1].Score) {
			rank = offset + int64(at) + 1
		}
		lines = append(lines, its.line(rank, row.Member.(string), row.Score))
	}
	return lines
}

// place reads a member's line; nil where it is not ranked: no entry, banned, or erased.
func place(
	ctx context.Context, client *redis.Client, board, window, member string,
) (*Line, error) {
	key := "lb:{s0}:" + board + ":" + window
	mine := 0.0
	for try := 0; try < tries; try++ {
		var meta *redis.MapStringStringCmd
		var composite *redis.FloatCmd
		var fromLow, fromHigh, below, above *redis.IntCmd
		err := look(ctx, client, func(pipe redis.Pipeliner) error {
			meta = pipe.HGetAll(ctx, key+":meta")
			composite = pipe.ZScore(ctx, key, member)
			fromLow = pipe.ZRank(ctx, key, member)
			fromHigh = pipe.ZRevRank(ctx, key, member)
			below = pipe.ZCount(ctx, key, "-inf", bound(mine))
			above = pipe.ZCount(ctx, key, bound(mine), "+inf")
			return nil
		})
		if err != nil {
			return nil, err
		}
		if len(meta.Val()) == 0 {
			return nil, errNotFilled
		}
		if errors.Is(composite.Err(), redis.Nil) {
			return nil, nil
		}
		its, err := scaleOf(meta.Val())
		if err != nil {
			return nil, err
		}
		position, better := fromHigh.Val(), above.Val()
		if its.low {
			position, better = fromLow.Val(), below.Val()
		}
		if its.shared {
			position = better
		}
		if !its.shared || composite.Val() == mine {
			found := its.line(position+1, member, composite.Val())
			return &found, nil
		}
		mine = composite.Val()
	}
	return nil, errNotFilled // it changes faster than it is read
}

// counter reads the exact value of a counter; "0" where nothing was ever added.
func counter(ctx context.Context, client *redis.Client, name string) (string, error) {
	var value *redis.StringCmd
	var complete *redis.IntCmd
	err := look(ctx, client, func(pipe redis.Pipeliner) error {
		value = pipe.Get(ctx, "ct:{s0}:"+name)
		complete = pipe.Exists(ctx, "lb:{s0}:counters:all:meta")
		return nil
	})
	if err != nil {
		return "", err
	}
	if complete.Val() == 0 {
		return "", errNotFilled
	}
	if errors.Is(value.Err(), redis.Nil) {
		return "0", nil
	}
	return value.Val(), nil
}

func answer(ctx context.Context, client *redis.Client, what string, rest []string) (any, error) {
	switch what {
	case "page":
		offset, err := strconv.ParseInt(rest[2], 10, 64)
		if err != nil {
			return nil, err
		}
		limit, err := strconv.ParseInt(rest[3], 10, 64)
		if err != nil {
			return nil, err
		}
		return page(ctx, client, rest[0], rest[1], offset, limit)
	case "rank":
		lines := []*Line{}
		for _, member := range rest[2:] {
			line, err := place(ctx, client, rest[0], rest[1], member)
			if err != nil {
				return nil, err
			}
			lines = append(lines, line)
		}
		return lines, nil
	default:
		return counter(ctx, client, rest[0])
	}
}

func main() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	defer client.Close()
	found, err := answer(ctx, client, os.Args[2], os.Args[3:])
	if errors.Is(err, errNotFilled) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(tryLater)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		os.Exit(1)
	}
}
