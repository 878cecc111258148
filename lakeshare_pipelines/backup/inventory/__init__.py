"""What a store holds, told by its own inventory or by ours, as one normalised listing."""
