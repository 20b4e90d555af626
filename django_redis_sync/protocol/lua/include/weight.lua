-- In: many (permits). Out: weight: a permit weighs one; 0 asks for the name alone, and weighs more
-- than any limit.
local weight = many == 0 and EXCLUSIVE or many
