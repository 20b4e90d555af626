-- In: many (permits), most (the limit). Out: fit, whether they are free.
local fit = not paused and (many == 0 and card == 0 or many > 0 and card + extra + many <= most)
