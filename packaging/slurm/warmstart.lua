-- Checks at submission what a comment asks of warmstart, as the job's prolog does. Needs nothing of warmstart's.
--
-- In cli_filter.lua (CliFilterPlugins=cli_filter/lua), where the user submits:
--
--     dofile("@PREFIX@/share/warmstart/warmstart.lua")
--     function slurm_cli_pre_submit(options, pack_offset)
--         local problem = warmstart_problem(options["comment"])
--         if problem then slurm.log_error("%s", problem) return slurm.ERROR end
--         return slurm.SUCCESS
--     end
--
-- In job_submit.lua, on the controller, where `slurm.log_user(problem)` tells the user, with `job_desc.comment`.
-- What only the policy knows, such as which registries and profiles it offers, `warmstart plan` says.

local SWITCHES = {fresh = true, refresh = true}
local REPEATED = {image = true, profiles = true}
local NAMED = {files = true, cache = true}
local OF_WINGS = {}
for word, plus in ("@WORDS@"):gmatch("(%a+)(%+?)") do (plus == "+" and REPEATED or OF_WINGS)[word] = true end
local LONGEST_VALUE, LONGEST_NAME = 512, 64

local function words_of(comment)
    local from = 1
    while true do
        local colon = comment:find(":", from, true)
        if not colon then return {} end
        if comment:sub(from, colon - 1):gsub("%s+$", ""):lower():sub(-9) == "warmstart" then
            local words = {}
            for word in comment:sub(colon + 1):match("^[^;]*"):gmatch("%S+") do words[#words + 1] = word end
            return words
        end
        from = colon + 1
    end
end

local function without_colon(comment)
    local text = comment:lower()
    local _, last = text:find("warmstart", 1, true)
    local word = last and text:sub(last + 1):match("^%s+([^%s;]+)")
    local key = word and word:match("^[^=]*")
    local is_meant = word and (word == "off" or SWITCHES[word] or REPEATED[key] or NAMED[key] or OF_WINGS[key])
    return is_meant and word or nil
end

-- Return what is wrong with a job's comment, in words for its user; nil if nothing is.
function warmstart_problem(comment)
    comment = comment or ""
    local words = words_of(comment)
    if #words == 0 then
        local word = without_colon(comment)
        return word and ("warmstart: the comment asks for nothing: write a colon, \"warmstart: " .. word .. "\"")
    end
    local known = {}
    for _, word in ipairs(words) do
        if word:lower() == "off" then return nil end
    end
    for _, word in ipairs(words) do
        if not SWITCHES[word:lower()] then
            local key, value = word:match("^([^=]*)=?(.*)$")
            key = key:lower()
            local is_once = NAMED[key] or OF_WINGS[key]
            local is_valid = #value > 0 and #value <= LONGEST_VALUE and not value:find("[^%w%._:/@#+,%-]")
            if NAMED[key] then is_valid = is_valid and #value <= LONGEST_NAME and not value:find("[^%w%._%-]") end
            if is_once and known[key] and known[key] ~= value then is_valid = false end
            if not is_valid or not (REPEATED[key] or is_once) then
                return "warmstart: the comment has \"" .. word:sub(1, 80):gsub("[^ -~]", "?")
                    .. "\", which warmstart does not understand; `warmstart plan --comment` says what it does"
            end
            known[key] = value
        end
    end
    return nil
end
