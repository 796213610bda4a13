// Gives the asker the blocks that a call runs.
package PACKAGE

import composersort4 "sort"

func init() {
	composerBusy = true
	composerForget = func() {
		composerLock.Lock()
		composerBlocks = map[int]bool{}
		composerLock.Unlock()
	}
	composerTake = func() []int {
		composerLock.Lock()
		defer composerLock.Unlock()
		found := []int{}
		for number := range composerBlocks {
			found = append(found, number)
		}
		composersort4.Ints(found)
		return found
	}
}
